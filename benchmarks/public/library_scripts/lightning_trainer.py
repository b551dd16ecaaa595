import torch, lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitViT(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.patch = nn.Conv2d(3, 384, 16, 16)
        self.pos = nn.Parameter(torch.zeros(1, 196, 384))
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True, activation="gelu"), 6
        )
        self.head = nn.Linear(384, 100)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.body(x).mean(1))

    def training_step(self, batch, idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-4)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)}


data = DataLoader(
    TensorDataset(torch.rand(256, 3, 224, 224), torch.randint(0, 100, (256,))), batch_size=32, num_workers=0
)
trainer = L.Trainer(
    max_steps=300,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    gradient_clip_val=1.0,
    accumulate_grad_batches=1,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(LitViT(), data)
