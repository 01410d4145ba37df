"""A language model over characters: embeddings of the last eight, and one hidden layer. Arguments: seed, parts of a batch."""

import sys
from pathlib import Path

import numpy

from common import softmax_loss, train

CONTEXT, WIDTH, HIDDEN = 8, 16, 128
random = numpy.random.default_rng(int(sys.argv[1]))
text = (Path(__file__).resolve().parents[3] / "LICENSE").read_text()
letters = sorted(set(text))
tokens = numpy.array([letters.index(letter) for letter in text])


def matrix(rows, columns):
    return (random.standard_normal((rows, columns)) / numpy.sqrt(rows)).astype(numpy.float32)


def batch():
    starts = random.integers(0, len(tokens) - CONTEXT, 64)
    return tokens[starts[:, None] + numpy.arange(CONTEXT)], tokens[starts + CONTEXT]


def gradients(weights, inputs, labels):
    embedding, first, second = weights
    flat = embedding[inputs].reshape(len(inputs), -1)
    hidden = numpy.tanh(flat @ first)
    losses, back = softmax_loss(hidden @ second, labels)
    of_second = hidden.T @ back
    back = (back @ second.T) * (1 - hidden * hidden)
    of_embedding = numpy.zeros_like(embedding)
    numpy.add.at(of_embedding, inputs, (back @ first.T).reshape(len(inputs), CONTEXT, WIDTH))
    return losses, [of_embedding, flat.T @ back, of_second]


train([matrix(len(letters), WIDTH), matrix(CONTEXT * WIDTH, HIDDEN), matrix(HIDDEN, len(letters))], batch, gradients, rate=0.1)
