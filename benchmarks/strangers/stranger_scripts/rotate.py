#!/usr/bin/python3
"""RotatE on FB15k-237 sizes, self-adversarial negative sampling, head and tail batches in turn."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tick import steps

NENTITY, NRELATION = 14541, 237
HIDDEN, GAMMA, EPSILON, ALPHA = 1000, 9.0, 2.0, 1.0
BATCH, NEGATIVE = 1024, 256
PI = 3.14159265358979323846


class KGEModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding_range = (GAMMA + EPSILON) / HIDDEN
        self.entity_embedding = nn.Parameter(torch.zeros(NENTITY, HIDDEN * 2))
        self.relation_embedding = nn.Parameter(torch.zeros(NRELATION, HIDDEN))
        nn.init.uniform_(self.entity_embedding, -self.embedding_range, self.embedding_range)
        nn.init.uniform_(self.relation_embedding, -self.embedding_range, self.embedding_range)

    def lookup(self, ids):
        return torch.index_select(self.entity_embedding, 0, ids.reshape(-1)).view(*ids.shape, -1)

    def rotate(self, head, relation, tail, mode):
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(tail, 2, dim=2)
        phase = relation / (self.embedding_range / PI)
        re_rel, im_rel = torch.cos(phase), torch.sin(phase)
        if mode == "head-batch":
            re_score = re_rel * re_tail + im_rel * im_tail - re_head
            im_score = re_rel * im_tail - im_rel * re_tail - im_head
        else:
            re_score = re_head * re_rel - im_head * im_rel - re_tail
            im_score = re_head * im_rel + im_head * re_rel - im_tail
        score = torch.stack([re_score, im_score], dim=0).norm(dim=0)
        return GAMMA - score.sum(dim=2)

    def forward(self, sample, negatives=None, mode="single"):
        head, tail = self.lookup(sample[:, 0:1]), self.lookup(sample[:, 2:3])
        relation = torch.index_select(self.relation_embedding, 0, sample[:, 1]).unsqueeze(1)
        if mode == "head-batch":
            head = self.lookup(negatives)
        elif mode == "tail-batch":
            tail = self.lookup(negatives)
        return self.rotate(head, relation, tail, mode)


@torch.compile(mode="max-autotune-no-cudagraphs")
def objective(model, positive, negatives, weight, mode):
    negative_score = model(positive, negatives, mode=mode)
    p = F.softmax(negative_score * ALPHA, dim=1).detach()
    negative_score = (p * F.logsigmoid(-negative_score)).sum(dim=1)
    positive_score = F.logsigmoid(model(positive)).squeeze(dim=1)
    positive_loss = -(weight * positive_score).sum() / weight.sum()
    negative_loss = -(weight * negative_score).sum() / weight.sum()
    return (positive_loss + negative_loss) / 2, positive_loss, negative_loss


def bidirectional(triples):
    """Yields batches of the two modes in turn, weighted by how often the pairs occur."""
    count = torch.bincount(triples[:, 0] * NRELATION + triples[:, 1], minlength=NENTITY * NRELATION) + 4
    modes = "head-batch", "tail-batch"
    turn = 0
    while True:
        batch = triples[torch.randint(len(triples), (BATCH,))]
        negatives = torch.randint(NENTITY, (BATCH, NEGATIVE))
        weight = count[batch[:, 0] * NRELATION + batch[:, 1]].float().rsqrt()
        yield batch.cuda(), negatives.cuda(), weight.cuda(), modes[turn % 2]
        turn += 1


def main():
    triples = torch.stack([torch.randint(n, (272115,)) for n in (NENTITY, NRELATION, NENTITY)], 1)
    model = KGEModel().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5)
    batches = bidirectional(triples)
    logs = []
    for step in steps():
        model.train()
        optimizer.zero_grad()
        loss, positive, negative = objective(model, *next(batches))
        loss.backward()
        optimizer.step()
        logs.append({"positive": positive.item(), "negative": negative.item(), "loss": loss.item()})
        if len(logs) == 100:
            print({k: sum(log[k] for log in logs) / len(logs) for k in logs[0]})
            logs = []


main()
