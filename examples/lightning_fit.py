"""A Lightning fit whose steps torchledger knows: python examples/lightning_fit.py [LEDGER]"""

from __future__ import annotations

import sys

import torch
from pytorch_lightning import LightningModule, Trainer

from torchledger.integrations.lightning import LedgerCallback


class Regression(LightningModule):
    def __init__(self, *, compiled: bool) -> None:
        super().__init__()
        layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.layers = torch.compile(layers) if compiled else layers

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return (self.layers(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(ledger: str | None = None, *, compiled: bool = True, steps: int = 16) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(8 * steps, 8), torch.randn(8 * steps, 1))
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LedgerCallback(ledger, force=True)],
    )
    trainer.fit(Regression(compiled=compiled), torch.utils.data.DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main(*sys.argv[1:2])
