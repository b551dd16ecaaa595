"""Inverse folding of protein backbones: message passing over 48 nearest residues."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from tick import steps

device = torch.device("cuda")
HIDDEN, NEIGHBOURS, LETTERS, LENGTH, BATCH = 128, 48, 21, 400, 16
BACKBONE_NOISE, DROPOUT, SMOOTHING = 0.2, 0.1, 0.1


def gather_edges(edges, index):
    return torch.gather(edges, 2, index.unsqueeze(-1).expand(-1, -1, -1, edges.size(-1)))


def gather_nodes(nodes, index):
    flat = index.view(index.shape[0], -1).unsqueeze(-1).expand(-1, -1, nodes.size(2))
    return torch.gather(nodes, 1, flat).view(*index.shape, -1)


def cat_neighbours(nodes, edges, index):
    return torch.cat([edges, gather_nodes(nodes, index)], -1)


class PositionWise(nn.Module):
    def __init__(self, hidden, ff):
        super().__init__()
        self.W_in, self.W_out, self.act = nn.Linear(hidden, ff), nn.Linear(ff, hidden), nn.GELU()

    def forward(self, h):
        return self.W_out(self.act(self.W_in(h)))


class EncLayer(nn.Module):
    def __init__(self, hidden, scale=30):
        super().__init__()
        self.scale, self.act = scale, nn.GELU()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden) for _ in range(3))
        self.drop1, self.drop2, self.drop3 = (nn.Dropout(DROPOUT) for _ in range(3))
        self.W1, self.W2, self.W3 = nn.Linear(3 * hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.W11, self.W12, self.W13 = (nn.Linear(k * hidden, hidden) for k in (3, 1, 1))
        self.dense = PositionWise(hidden, 4 * hidden)

    def forward(self, h_V, h_E, E_idx, mask_V, mask_attend):
        h_EV = cat_neighbours(h_V, h_E, E_idx)
        h_EV = torch.cat([h_V.unsqueeze(-2).expand(-1, -1, h_EV.size(-2), -1), h_EV], -1)
        message = self.W3(self.act(self.W2(self.act(self.W1(h_EV)))))
        message = mask_attend.unsqueeze(-1) * message
        h_V = self.norm1(h_V + self.drop1(message.sum(-2) / self.scale))
        h_V = self.norm2(h_V + self.drop2(self.dense(h_V)))
        h_V = mask_V.unsqueeze(-1) * h_V
        h_EV = cat_neighbours(h_V, h_E, E_idx)
        h_EV = torch.cat([h_V.unsqueeze(-2).expand(-1, -1, h_EV.size(-2), -1), h_EV], -1)
        message = self.W13(self.act(self.W12(self.act(self.W11(h_EV)))))
        return h_V, self.norm3(h_E + self.drop3(message))


class DecLayer(nn.Module):
    def __init__(self, hidden, scale=30):
        super().__init__()
        self.scale, self.act = scale, nn.GELU()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop1, self.drop2 = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.W1, self.W2, self.W3 = nn.Linear(4 * hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.dense = PositionWise(hidden, 4 * hidden)

    def forward(self, h_V, h_E, mask_V):
        h_EV = torch.cat([h_V.unsqueeze(-2).expand(-1, -1, h_E.size(-2), -1), h_E], -1)
        message = self.W3(self.act(self.W2(self.act(self.W1(h_EV)))))
        h_V = self.norm1(h_V + self.drop1(message.sum(-2) / self.scale))
        h_V = self.norm2(h_V + self.drop2(self.dense(h_V)))
        return mask_V.unsqueeze(-1) * h_V


class Features(nn.Module):
    def __init__(self, edge_features, top_k, num_rbf=16, num_pos=16, max_relative=32):
        super().__init__()
        self.top_k, self.num_rbf, self.max_relative = top_k, num_rbf, max_relative
        self.positions = nn.Linear(2 * max_relative + 2, num_pos)
        self.edge_embedding = nn.Linear(num_pos + num_rbf * 25, edge_features, bias=False)
        self.norm_edges = nn.LayerNorm(edge_features)

    def neighbours(self, X, mask, eps=1e-6):
        mask_2D = mask[:, None] * mask[:, :, None]
        dX = X[:, None] - X[:, :, None]
        D = mask_2D * torch.sqrt((dX**2).sum(3) + eps)
        D_max = D.max(-1, keepdim=True)[0]
        D_adjust = D + (1.0 - mask_2D) * D_max
        return torch.topk(D_adjust, min(self.top_k, X.shape[1]), dim=-1, largest=False)

    def rbf(self, D):
        mu = torch.linspace(2.0, 22.0, self.num_rbf, device=D.device)
        return torch.exp(-(((D.unsqueeze(-1) - mu) / (20.0 / self.num_rbf)) ** 2))

    def pair(self, A, B, E_idx):
        D = torch.sqrt(((A[:, :, None] - B[:, None]) ** 2).sum(-1) + 1e-6)
        return self.rbf(gather_edges(D[..., None], E_idx)[..., 0])

    def forward(self, X, mask, residue_idx, chain):
        X = X + BACKBONE_NOISE * torch.randn_like(X)
        b, c = X[:, :, 1] - X[:, :, 0], X[:, :, 2] - X[:, :, 1]
        a = torch.linalg.cross(b, c, dim=-1)
        Cb = -0.58273431 * a + 0.56802827 * b - 0.54067466 * c + X[:, :, 1]
        atoms = [X[:, :, 1], X[:, :, 0], X[:, :, 2], X[:, :, 3], Cb]
        _, E_idx = self.neighbours(X[:, :, 1], mask)
        rbf = torch.cat([self.pair(p, q, E_idx) for p in atoms for q in atoms], -1)
        offset = gather_edges((residue_idx[:, :, None] - residue_idx[:, None])[..., None], E_idx)[..., 0]
        same = gather_edges((chain[:, :, None] == chain[:, None]).long()[..., None], E_idx)[..., 0]
        d = (offset + self.max_relative).clip(0, 2 * self.max_relative) * same
        d = d + (1 - same) * (2 * self.max_relative + 1)
        pos = self.positions(F.one_hot(d, 2 * self.max_relative + 2).float())
        return self.norm_edges(self.edge_embedding(torch.cat([pos, rbf], -1))), E_idx


class ProteinMPNN(nn.Module):
    def __init__(self, hidden=HIDDEN, layers=3):
        super().__init__()
        self.features = Features(hidden, NEIGHBOURS)
        self.W_e, self.W_s = nn.Linear(hidden, hidden), nn.Embedding(LETTERS, hidden)
        self.encoder_layers = nn.ModuleList([EncLayer(hidden) for _ in range(layers)])
        self.decoder_layers = nn.ModuleList([DecLayer(hidden) for _ in range(layers)])
        self.W_out = nn.Linear(hidden, LETTERS)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, X, S, mask, residue_idx, chain):
        E, E_idx = self.features(X, mask, residue_idx, chain)
        h_V, h_E = torch.zeros(E.shape[0], E.shape[1], E.shape[-1], device=E.device), self.W_e(E)
        mask_attend = gather_nodes(mask.unsqueeze(-1), E_idx).squeeze(-1)
        mask_attend = mask.unsqueeze(-1) * mask_attend
        for layer in self.encoder_layers:
            h_V, h_E = layer(h_V, h_E, E_idx, mask, mask_attend)

        h_S = self.W_s(S)
        h_ES = cat_neighbours(h_S, h_E, E_idx)
        h_EX = cat_neighbours(torch.zeros_like(h_S), h_E, E_idx)
        h_EXV = cat_neighbours(h_V, h_EX, E_idx)
        order = torch.argsort((mask + 0.0001) * torch.randn(mask.shape, device=mask.device).abs())
        permutation = F.one_hot(order, num_classes=E_idx.shape[1]).float()
        lower = 1 - torch.triu(torch.ones(E_idx.shape[1], E_idx.shape[1], device=mask.device))
        backward = torch.einsum("ij,biq,bjp->bqp", lower, permutation, permutation)
        attend = torch.gather(backward, 2, E_idx).unsqueeze(-1)
        mask_1D = mask.view(mask.size(0), mask.size(1), 1, 1)
        mask_bw, mask_fw = mask_1D * attend, mask_1D * (1.0 - attend)
        h_EXV_fw = mask_fw * h_EXV
        for layer in self.decoder_layers:
            h_ESV = cat_neighbours(h_V, h_ES, E_idx)
            h_V = layer(h_V, mask_bw * h_ESV + h_EXV_fw, mask)
        return F.log_softmax(self.W_out(h_V), dim=-1)


class Backbones(Dataset):
    def __init__(self, count=256):
        self.lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count,)).tolist()

    def __len__(self):
        return len(self.lengths) * 40

    def __getitem__(self, i):
        n = self.lengths[i % len(self.lengths)]
        ca = (F.normalize(torch.randn(n, 3), dim=-1) * 3.8).cumsum(0)
        X = torch.zeros(LENGTH, 4, 3)
        X[:n] = ca[:, None] + torch.randn(n, 4, 3)
        mask = (torch.arange(LENGTH) < n).float()
        chain = (torch.arange(LENGTH) >= n // 2).long()
        return X, torch.randint(LETTERS - 1, (LENGTH,)), mask, torch.arange(LENGTH) + 100 * chain, chain


def loss_smoothed(S, log_probs, mask):
    onehot = F.one_hot(S, LETTERS).float()
    onehot = onehot + SMOOTHING / LETTERS
    onehot = onehot / onehot.sum(-1, keepdim=True)
    return (-(onehot * log_probs).sum(-1) * mask).sum() / 2000.0


class NoamOpt:
    def __init__(self, model_size, factor, warmup, optimizer):
        self.optimizer, self._step = optimizer, 0
        self.warmup, self.factor, self.model_size = warmup, factor, model_size

    def rate(self, step):
        return self.factor * (self.model_size**-0.5 * min(step**-0.5, step * self.warmup**-1.5))

    def advance(self):
        self._step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self._step)


model = ProteinMPNN().to(device)
adam = torch.optim.Adam(model.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9)
noam = NoamOpt(HIDDEN, 2, 4000, adam)
scaler = torch.amp.GradScaler(device.type)
batches = iter(DataLoader(Backbones(), batch_size=BATCH, shuffle=True))
train_sum, train_acc, train_weights = 0.0, 0.0, 0.0
for _ in steps():
    X, S, mask, residue_idx, chain = [t.to(device) for t in next(batches)]
    adam.zero_grad()
    noam.advance()
    with torch.autocast(device.type, dtype=torch.float16):
        log_probs = model(X, S, mask, residue_idx, chain)
        loss = loss_smoothed(S, log_probs, mask)
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()
    with torch.no_grad():
        nll = F.nll_loss(log_probs.transpose(1, 2).float(), S, reduction="none")
        hit = (log_probs.argmax(-1) == S).float()
    train_sum += torch.sum(nll * mask).cpu().data.numpy()
    train_acc += torch.sum(hit * mask).cpu().data.numpy()
    train_weights += torch.sum(mask).cpu().data.numpy()
print("perplexity", 2.718281828 ** (train_sum / train_weights), "accuracy", train_acc / train_weights)
