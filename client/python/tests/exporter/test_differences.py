import math

import pytest
import torch

from braid.exporter.checks import differences

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "values, expected",
    [([1, -3, 2], 3), ([], 0), ([NAN, -2, INF], 2), ([NAN, -INF], 0)],
)
def test_largest_is_the_largest_finite_magnitude(values, expected):
    assert differences.largest(torch.tensor(values, dtype=torch.float32)) == expected


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ([1, 2], [1, 4.5], 2.5),
        ([], [], 0),
        ([NAN, INF, 1], [NAN, INF, 3], 2),
        ([NAN, 1], [1, 1], INF),
        ([INF, 1], [-INF, 1], INF),
        ([INF, 1], [5, 1], INF),
    ],
)
def test_difference_is_infinite_unless_the_same_values_are_finite(one, other, expected):
    pair = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    assert differences.difference(*pair) == expected


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16])
def test_any_dtype_is_compared(dtype):
    one = torch.tensor([1, 0, 1]).to(dtype)
    assert differences.difference(one, one.clone()) == 0
    assert differences.difference(one, torch.zeros_like(one)) == 1
    assert differences.largest(one) == 1


def test_large_tensors_are_compared_to_their_end():
    one = torch.zeros(3 * differences.CHUNK + 1)
    other = one.clone()
    other[-1] = -7
    assert differences.difference(one, other) == 7
    assert differences.largest(other) == 7


def test_tensors_that_are_not_contiguous_are_compared_by_place():
    one = torch.arange(12.0).reshape(3, 4)
    assert differences.difference(one.t(), one.t().contiguous()) == 0
    assert differences.difference(one, one.t().contiguous().reshape(3, 4)) > 0


def test_nudge_changes_the_last_bits_of_some_elements():
    tensor = torch.rand(2 * differences.CHUNK + 3) + 1
    before = tensor.clone()
    differences.nudge(tensor, seed=1)
    changed = tensor != before
    assert 0.6 < changed.float().mean() < 0.7
    assert differences.difference(tensor, before) <= 2 * torch.finfo(torch.float32).eps
    again = before.clone()
    differences.nudge(again, seed=1)
    assert torch.equal(again, tensor)
