import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from tick import steps

USERS, ITEMS, CATES, D, L, BATCH = 1000000, 2000000, 20000, 32, 100, 16384


class Logs(Dataset):
    def __init__(self, n=2**20):
        self.user = torch.randint(0, USERS, (n,))
        self.item = torch.randint(1, ITEMS, (n,))
        self.hist = torch.randint(1, ITEMS, (n, L), dtype=torch.int32)
        self.length = torch.randint(10, L + 1, (n,))
        self.click = torch.randint(0, 2, (n,)).float()

    def __len__(self):
        return len(self.user)

    def __getitem__(self, idx):
        return tuple(t[idx] for t in (self.user, self.item, self.hist, self.length, self.click))


class Dice(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bn = nn.BatchNorm1d(n, eps=1e-9, affine=False)
        self.alpha = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x))
        return p * x + (1 - p) * self.alpha * x


class ActivationUnit(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4 * d, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1))

    def forward(self, query, keys, mask):
        q = query.unsqueeze(1).expand_as(keys)
        score = self.mlp(torch.cat([q, keys, q - keys, q * keys], -1)).squeeze(-1)
        return torch.bmm(score.masked_fill(~mask, 0.0).unsqueeze(1), keys).squeeze(1)


class DIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, D, sparse=True)
        self.item = nn.Embedding(ITEMS, D, sparse=True)
        self.cate = nn.Embedding(CATES, D)
        self.item_bias = nn.Embedding(ITEMS, 1, sparse=True)
        self.register_buffer("cate_of", torch.randint(0, CATES, (ITEMS,)))
        self.attention = torch.compile(ActivationUnit(2 * D))
        self.head = torch.compile(
            nn.Sequential(nn.Linear(7 * D, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1))
        )

    def lookup(self, ids):
        return torch.cat([self.item(ids), self.cate(self.cate_of[ids])], -1)

    def forward(self, user, item, hist, length):
        mask = torch.arange(L, device=hist.device) < length[:, None]
        target = self.lookup(item)
        interest = self.attention(target, self.lookup(hist), mask)
        x = torch.cat([self.user(user), interest, target, interest * target], -1)
        return (self.head(x) + self.item_bias(item)).squeeze(-1)


data = Logs()
sampler = BatchSampler(RandomSampler(data), BATCH, drop_last=True)
loader = DataLoader(data, sampler=sampler, batch_size=None, num_workers=4, pin_memory=True, persistent_workers=True)
batches = (batch for epoch in range(100) for batch in loader)
model = DIN().cuda()
tables = [model.user.weight, model.item.weight, model.item_bias.weight]
rest = [p for p in model.parameters() if all(p is not t for t in tables)]
sparse_opt = torch.optim.SparseAdam(tables, lr=1e-3)
dense_opt = torch.optim.Adam(rest, lr=1e-3)
for i in steps():
    user, item, hist, length, click = (t.cuda(non_blocking=True) for t in next(batches))
    logits = model(user, item, hist.long(), length)
    loss = F.binary_cross_entropy_with_logits(logits, click)
    loss = loss + 1e-6 * model.cate.weight.pow(2).sum()
    model.zero_grad()
    loss.backward()
    sparse_opt.step()
    dense_opt.step()
    if i % 10 == 0:
        print(f"step {i} loss {loss.item():.4f}")
