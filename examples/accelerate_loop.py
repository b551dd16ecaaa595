"""An accelerate loop with accumulated gradients: torchledger run --profile examples/accelerate_loop.py"""

from __future__ import annotations

import torch
from accelerate import Accelerator

from torchledger.integrations.accelerate import mark_steps


def main(*, compiled: bool = True, steps: int = 16) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = torch.utils.data.TensorDataset(torch.randn(16 * steps, 8), torch.randn(16 * steps, 1))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), torch.utils.data.DataLoader(data, batch_size=8)
    )
    mark_steps(optimizer)
    run = torch.compile(model) if compiled else model
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward((run(inputs) - targets).square().mean())
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
