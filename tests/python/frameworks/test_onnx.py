"""What 'pawl export --onnx' writes of each built-in workload: ONNX Runtime computes from it what Pawl does."""

import os
import subprocess
from typing import Any

import numpy as np
import onnxruntime
import pytest
from conftest import Job, environment
from safetensors.numpy import load_file

SLM = {"size": "tiny", "data": {"tokens": 100_000}, "evaluation": {"windows": 8}}
FOREX = {"preset": "smoke", "data": {"bars": 2500}, "evaluation": {"windows": 40, "samples": 8, "steps": 4}}
# A short training of each: its configuration, its settings and its items.
WORKLOADS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("slm", SLM, {"batchPerGpu": 4}, 40),
    ("slm", {**SLM, "method": "Lora"}, {"batchPerGpu": 4, "precision": "bf16"}, 40),
    ("vision-bdh", {"preset": "smoke"}, {"batchPerGpu": 8, "evalBatch": 32}, 32),
    ("ups", {"preset": "smoke"}, {"batchPerGpu": 2, "precision": "bf16"}, 20),
    ("forex", FOREX, {"batchPerGpu": 8, "evalBatch": 20}, 32),
    ("atft-gat-fan", {"preset": "smoke"}, {"batchPerGpu": 128, "evalBatch": 640}, 256),
]


def half(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first half of a batch. Offsets are one more than what they divide; edges begin in nodes of the batch."""
    first = {name: values[: (len(values) + 1) // 2] for name, values in inputs.items()}
    if "edges.source" in first:
        first["edges.source"] = np.minimum(first["edges.source"], len(first["features"]) - 1)
    return first


def repeated(inputs: dict[str, np.ndarray], times: int) -> dict[str, np.ndarray]:
    """A batch several times, as one. Edges are one after another, with all padding at the end."""
    whole = {name: np.concatenate([values] * times) for name, values in inputs.items()}
    if "edges.source" in inputs:
        sources, offsets, attributes = (inputs[f"edges.{name}"] for name in ("source", "offset", "attribute"))
        nodes, used, padding = len(inputs["features"]), offsets[-1], (len(sources) - offsets[-1]) * times
        shifted = [sources[:used] + nodes * copy for copy in range(times)]
        whole["edges.source"] = np.pad(np.concatenate(shifted), (0, padding))
        whole["edges.offset"] = np.concatenate([offsets[:1], *(offsets[1:] + used * copy for copy in range(times))])
        whole["edges.attribute"] = np.pad(np.concatenate([attributes[:used]] * times), ((0, padding), (0, 0)))
    return whole


@pytest.mark.parametrize(("name", "config", "settings", "items"), WORKLOADS)
def test_outputs_are_those_of_pawl(
    name: str, config: dict[str, Any], settings: dict[str, Any], items: int, job: Job
) -> None:
    spec = {
        "workload": {"name": name, "config": config},
        "settings": {"compile": "Graph", "learningRate": "1e-3", **settings},
        "train": {"items": items, "checkpoint": {"every": "1h", "keep": 2}},
    }
    job.write([], spec)
    code, _ = job.run()
    assert code == 0
    command = [os.environ["PAWL"], "export", "job.yaml", "--to", "model", "--checkpoint", "last", "--onnx"]
    subprocess.run(command, cwd=job.directory, env=environment(), check=True)
    session = onnxruntime.InferenceSession(job.directory / "model/model.onnx", providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"pawl.batch": "any"}
    example = load_file(job.directory / "model/onnx/example.safetensors")
    given = {key: values.astype(np.int64) if values.dtype == np.uint32 else values for key, values in example.items()}
    inputs = {declared.name: given[declared.name] for declared in session.get_inputs()}
    outputs = [output.name for output in session.get_outputs()]
    assert {*inputs, *outputs} == {*example}
    # The example has 2 items. The model was traced for 2, 3 and 5: others show that its batch size is free.
    batches = (
        (inputs, lambda whole: whole),
        (half(inputs), lambda whole: whole[: len(whole) // 2]),
        (repeated(inputs, 4), lambda whole: np.concatenate([whole] * 4)),
    )
    for values, of in batches:
        for output, computed in zip(outputs, session.run(outputs, values), strict=True):
            expected = of(example[output])
            assert expected.std() > 0
            near = 1e-5 * np.abs(expected).max()
            np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=near, err_msg=output)
