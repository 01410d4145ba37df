"""The page 'Bring your script': its commands run, and its tables are true."""

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


SECTIONS = ["Plain PyTorch", "Hugging Face Trainer", "Lightning", "Accelerate"]


@pytest.mark.parametrize(("number", "section"), list(enumerate(SECTIONS, 1)))
def test_lines_for_pawl_are_as_many_as_the_table_says(number: int, section: str) -> None:
    """The frameworks' tests run these scripts."""
    script = blocks("python")[number]
    compile(script, section, "exec")
    marked = [line for line in script.splitlines() if line.endswith("  # Pawl")]
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [{section}]("))
    assert int(row.split("|")[2]) == len(marked)
