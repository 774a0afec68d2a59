"""Reader of an exported pair that uses only train.json, like a server, and runs it in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.export.pt2_archive._package import load_pt2

Key = tuple[str, str]


class ExportedPair:
    def __init__(self, version: Path) -> None:
        self.version = version
        archive = load_pt2(str(version / "model.pt2"))
        self.programs = archive.exported_programs
        self.json: dict[str, Any] = json.loads(archive.extra_files["train.json"])
        self.tensors = load_file(version / "model.safetensors")

    def part(self, path: str = "") -> dict[str, Any]:
        (part,) = (each for each in self.json["parts"] if each["path"] == path)
        return part

    def program(self, kind: str, path: str = "", precision: str = "model") -> dict[str, Any]:
        (found,) = (p for p in self.part(path)["programs"] if p["precision"] == precision)
        return found[kind]

    def state(self) -> dict[Key, torch.Tensor]:
        """Returns the tensor of each name; tied names share one."""
        return {
            (entry["kind"], entry["name"]): self.tensors[entry.get("tied_to", entry["name"])]
            for entry in self.json["state"]
        }

    def run(self, program: dict[str, Any], given: dict[Key, torch.Tensor]) -> dict[Key, Any]:
        flat = [given[slot["role"], slot["name"]] for slot in program["inputs"]]
        before = [tensor.clone() for tensor in flat]
        outputs = self.programs[program["graph"]].module(check_guards=False)(*flat)
        for slot, tensor, was in zip(program["inputs"], flat, before):
            assert torch.equal(tensor, was), f"{program['graph']} writes to {slot['name']}"
        keys = [(slot["role"], slot["name"]) for slot in program["outputs"]]
        assert len(set(keys)) == len(keys) == len(outputs)
        memory = [tensor.untyped_storage().data_ptr() for tensor in outputs if tensor.numel()]
        if program["graph"].startswith("eval"):
            assert len(set(memory)) == len(memory), "outputs share memory"
        return dict(zip(keys, outputs))
