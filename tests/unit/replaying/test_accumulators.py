"""Which arguments a kernel adds to."""

from __future__ import annotations

import pytest
import torch

from captured import capture_call
from torchledger.replaying.accumulators import accumulated_pointers
from torchledger.replaying.extract import kernel_module


@pytest.mark.parametrize(
    "line",
    [
        "tl.atomic_add(out_ptr1 + (x2 + 768*tmp8), tmp13, None, sem='relaxed')",
        "atomic_add(&out_ptr1[static_cast<int64_t>(x1 + 16L*tmp9)], tmp0);",
        "out_ptr1[static_cast<int64_t>(x1 + 16L*tmp9)] += static_cast<float>(tmp0);",
        "(tmp44 + at::vec::Vectorized<float>::loadu(out_ptr1 + x1 + 16L*tmp9)).store(out_ptr1 + x1 + 16L*tmp9);",
        "atomic_add_vec<float, int64_t, 1>(out_ptr1, tmp7, tmp9);",
    ],
)
def test_the_pointer_that_is_added_to_is_found(line: str) -> None:
    assert accumulated_pointers(line) == {"out_ptr1"}


def test_settings_that_only_name_atomics_are_no_atomics() -> None:
    assert accumulated_pointers("inductor_meta={'atomic_add_found': True, 'mutated_arg_names': ['out_ptr1']}") == set()


def test_a_scatter_starts_from_zeros_and_agrees_with_eager_ops(tmp_path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 8))
    tokens = torch.randint(0, 50, (4, 32))
    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(model)(tokens).sum().backward())
    added = []
    for launch in captured.calls:
        graph = next(graph for graph in captured.graphs if graph.name == launch.graph)
        others = [other for other in captured.launches if other.graph == launch.graph]
        text, _ = kernel_module(graph, launch, others, captured.kernels, title=launch.launch_id)
        namespace: dict = {"__name__": "extracted"}
        with torch.no_grad():
            exec(text, namespace)
            result = namespace["check"]()
        assert result is not False, launch.launch_id
        if "zero=True" in text:
            added.append(result)
    assert True in added
