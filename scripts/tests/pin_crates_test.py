"""pin_crates.py against a Cargo.lock."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import pin_crates  # noqa: E402

LOCK = """
version = 4

[[package]]
name = "own"
version = "0.1.0"

[[package]]
name = "syn"
version = "2.0.1"
source = "registry"

[[package]]
name = "syn"
version = "3.0.0"
source = "registry"

[[package]]
name = "wasip2"
version = "1.0.1+wasi-0.2.4"
source = "registry"
"""


def test_every_crate_of_a_registry_is_pinned() -> None:
    assert pin_crates.pins(LOCK) == [
        'syn-2-0-1 = { package = "syn", version = "=2.0.1", default-features = false }\n',
        'syn-3-0-0 = { package = "syn", version = "=3.0.0", default-features = false }\n',
        'wasip2 = { version = "=1.0.1", default-features = false }\n',
    ]
