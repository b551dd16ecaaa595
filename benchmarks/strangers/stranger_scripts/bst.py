"""Behaviour sequence transformer for click-through rates."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

ITEMS, SHOPS, TAGS, USERS = 1_000_000, 100_000, 20_000, 500_000
D, HEADS, LAYERS, LENGTH, BATCH, TAGS_PER_USER = 64, 8, 2, 64, 4096, 10


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.item, self.shop = nn.Embedding(ITEMS, D, padding_idx=0), nn.Embedding(SHOPS, D, padding_idx=0)
        self.user = nn.Embedding(USERS, D)
        self.tags = nn.EmbeddingBag(TAGS, D, mode="sum")
        for table in (self.item, self.shop, self.user, self.tags):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, batch):
        history = torch.cat([self.item(batch["items"]), self.shop(batch["shops"])], -1)
        target = torch.cat([self.item(batch["item"]), self.shop(batch["shop"])], -1)
        tags = self.tags(batch["tags"], batch["offsets"], per_sample_weights=batch["weights"])
        return history, target, torch.cat([self.user(batch["user"]), tags], -1)


class BST(nn.Module):
    def __init__(self):
        super().__init__()
        d = 2 * D
        self.position = nn.Parameter(torch.randn(LENGTH, d) * 0.01)
        layer = nn.TransformerEncoderLayer(d, HEADS, 4 * d, dropout=0.1, batch_first=True, activation=F.leaky_relu)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.target_attention = nn.MultiheadAttention(d, HEADS, batch_first=True)
        widths = [3 * d + 8, 1024, 512, 256]
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.LeakyReLU(), nn.Dropout(0.1)]
        self.mlp = nn.Sequential(*layers, nn.Linear(256, 1))
        self.register_buffer("causal", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, history, target, user, dense, padding):
        x = history + self.position
        x = self.encoder(x, mask=self.causal, src_key_padding_mask=padding, is_causal=True)
        pooled, _ = self.target_attention(target[:, None], x, x, key_padding_mask=padding, need_weights=False)
        return self.mlp(torch.cat([pooled[:, 0], target, user, dense], -1)).squeeze(-1)


def make_batch():
    lengths = torch.randint(8, LENGTH + 1, (BATCH, 1), device="cuda")
    padding = torch.arange(LENGTH, device="cuda") >= lengths
    return {
        "items": torch.randint(1, ITEMS, (BATCH, LENGTH), device="cuda").masked_fill(padding, 0),
        "shops": torch.randint(1, SHOPS, (BATCH, LENGTH), device="cuda").masked_fill(padding, 0),
        "item": torch.randint(1, ITEMS, (BATCH,), device="cuda"),
        "shop": torch.randint(1, SHOPS, (BATCH,), device="cuda"),
        "user": torch.randint(0, USERS, (BATCH,), device="cuda"),
        "tags": torch.randint(0, TAGS, (BATCH * TAGS_PER_USER,), device="cuda"),
        "offsets": torch.arange(0, BATCH * TAGS_PER_USER, TAGS_PER_USER, device="cuda"),
        "weights": torch.rand(BATCH * TAGS_PER_USER, device="cuda"),
        "dense": torch.randn(BATCH, 8, device="cuda"),
        "padding": padding,
        "click": (torch.rand(BATCH, device="cuda") < 0.2).float(),
    }


embeddings, tower = Embeddings().cuda(), BST().cuda()
compiled = torch.compile(tower)
optimizer = torch.optim.RMSprop([*embeddings.parameters(), *tower.parameters()], lr=1e-3, alpha=0.99)
pool = [make_batch() for _ in range(8)]
total, count = 0.0, 0
for i in steps():
    batch = pool[i % len(pool)]
    history, target, user = embeddings(batch)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = compiled(history, target, user, batch["dense"], batch["padding"])
    loss = F.binary_cross_entropy_with_logits(logits.float(), batch["click"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total, count = total + loss.detach(), count + 1
