"""Writes the data: instructions of different lengths."""
import json

WORDS = "sort the list add two numbers reverse this word name a colour count to ten".split()
items = [{"instruction": " ".join(WORDS[(i + k) % len(WORDS)] for k in range(3 + i % 5)) + "\n", "output": " ".join(WORDS[: 1 + i % 6])}
         for i in range(1024)]
json.dump(items, open("data.json", "w"))
