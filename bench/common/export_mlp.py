"""Exports 784→512→512→10 as a TorchScript model with a recorded example.

    python -m bench.common.export_mlp REPOSITORY
"""

import pathlib
import sys
import warnings

import torch
from torch.utils import bundled_inputs

warnings.filterwarnings("ignore", category=DeprecationWarning)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(784, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, 10),
        )

    def forward(self, x):
        return self.layers(x)


def main() -> None:
    torch.manual_seed(0)
    folder = pathlib.Path(sys.argv[1]) / "mlp" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    scripted = torch.jit.script(Mlp().eval())
    example = bundled_inputs.bundle_inputs(scripted, [(torch.zeros(2, 784),)])
    torch.jit.save(example, str(folder / "model.pt"))


if __name__ == "__main__":
    main()
