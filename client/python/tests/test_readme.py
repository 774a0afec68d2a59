"""The README's examples run as they stand."""

import pathlib
import re

import grpc

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def test_examples_run(server):
    examples = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 4
    names = {}
    for example in examples:
        if "except braid.InvalidArgument" in example:
            server.fail("ModelInfer", grpc.StatusCode.INVALID_ARGUMENT)
        exec(example.replace("127.0.0.1:8001", server.address), names)
    names["client"].close()
    assert names["version"] == 2
    assert [name for name, _ in server.calls].count("Step") == 3 + 10 + 1
    assert server.streams == 1
