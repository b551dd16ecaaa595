import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import BertConfig, BertModel
from tick import steps

DIM, QUERIES, WAYS, QLEN, VOCAB = 128, 48, 4, 32, 30522
MASK_ID = 103


class ColBERT(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(num_hidden_layers=6, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.linear = nn.Linear(config.hidden_size, DIM, bias=False)

    def forward(self, ids, mask):
        h = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return F.normalize(self.linear(h), p=2, dim=2)


def maxsim(q, d, keep):
    scores = torch.einsum("qid,pjd->qpij", q, d)
    scores = scores.masked_fill(~keep[None, :, None, :], -9999.0)
    return scores.max(-1).values.sum(-1)


def make_batch(rng):
    longest = rng.randrange(150, 181)
    q = torch.randint(1000, VOCAB, (QUERIES, QLEN))
    for row in q:
        row[rng.randrange(8, 24) :] = MASK_ID
    d = torch.randint(1000, VOCAB, (QUERIES * WAYS, longest))
    lengths = torch.randint(60, longest + 1, (QUERIES * WAYS, 1))
    mask = (torch.arange(longest) < lengths).long()
    teacher = torch.randn(QUERIES, WAYS)
    return q.cuda(), (d * mask).cuda(), mask.cuda(), teacher.cuda()


rng = random.Random(12345)
model = ColBERT().cuda().train()
encode = torch.compile(model, dynamic=True)
skiplist = torch.zeros(VOCAB, dtype=torch.bool, device="cuda")
skiplist[torch.randint(1000, VOCAB, (32,), device="cuda")] = True
opt = torch.optim.AdamW(model.parameters(), lr=1e-5, eps=1e-8)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / 20))
labels = torch.arange(QUERIES, device="cuda") * WAYS
train_loss = None
for i in steps():
    q_ids, d_ids, d_mask, teacher = make_batch(rng)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        q = encode(q_ids, torch.ones_like(q_ids))
        d = encode(d_ids, d_mask)
        keep = d_mask.bool() & ~skiplist[d_ids]
        scores = maxsim(q, d, keep)
    scores = scores.float()
    own = scores.view(QUERIES, QUERIES, WAYS)[torch.arange(QUERIES), torch.arange(QUERIES)]
    kd = F.kl_div(F.log_softmax(own, -1), F.log_softmax(teacher, -1), reduction="batchmean", log_target=True)
    loss = kd + F.cross_entropy(scores, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    value = loss.item()
    train_loss = value if train_loss is None else 0.999 * train_loss + 0.001 * value
