"""The page 'Bring your script': its commands run, and its fragments are those of the examples."""

import re
import subprocess

import pytest
from conftest import ROOT, Job, environment, phases

PAGE = (ROOT / "trainer-image/python/README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_first_script(job: Job) -> None:
    (job.directory / "train.py").write_text(blocks("python")[0])
    (job.directory / "job.yaml").write_text(blocks("yaml")[0])
    by_hand, measured = blocks("sh")[0].splitlines()
    env = {name: value for name, value in environment().items() if not name.startswith("PAWL_")}
    done = subprocess.run(["sh", "-c", by_hand], cwd=job.directory, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("validation: loss ")
    assert measured == "SCRIPTS=$PWD pawl run job.yaml"
    code, status = job.run(SCRIPTS=str(job.directory))
    assert code == 0
    assert phases(status)["compile"] == ("Accepted", "SpeedAboveThreshold")
    assert phases(status)["attention"] == ("Unsupported", "Unsupported")


@pytest.mark.parametrize(("number", "framework"), [(1, "pytorch"), (2, "huggingface"), (3, "lightning"), (4, "accelerate")])
def test_fragments_are_those_of_the_examples(number: int, framework: str) -> None:
    source = (ROOT / "examples" / framework / "train.py").read_text().splitlines()
    lines = blocks("python")[number].splitlines()
    missing = [line for line in lines if line not in source]
    assert lines and missing == []
