"""Dense retrieval with cached gradients: a BERT twin over 256 pairs in pieces, random states replayed, eager autocast."""

import torch, torch.nn.functional as F
from transformers import BertConfig, BertModel, get_linear_schedule_with_warmup
from tick import steps

PAIRS, PIECE, QUERY, PASSAGE, TAU = 256, 64, 32, 128, 0.02
config = BertConfig(num_hidden_layers=8, attn_implementation="sdpa")
model = BertModel(config, add_pooling_layer=False).cuda().train()
opt = torch.optim.AdamW(model.parameters(), 2e-5, weight_decay=0.01)
sched = get_linear_schedule_with_warmup(opt, 100, 10000)


class RandomState:
    """What the generators were when a piece first went through."""

    def __init__(self):
        self.cpu, self.cuda = torch.get_rng_state(), torch.cuda.get_rng_state()

    def __enter__(self):
        self.fork = torch.random.fork_rng(devices=[torch.cuda.current_device()])
        self.fork.__enter__()
        torch.set_rng_state(self.cpu)
        torch.cuda.set_rng_state(self.cuda)

    def __exit__(self, *error):
        self.fork.__exit__(*error)


def embed(ids, mask):
    with torch.autocast("cuda", torch.bfloat16):
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mask = mask[..., None].float()
    return F.normalize((hidden.float() * mask).sum(1) / mask.sum(1).clamp_min(1e-6), dim=-1)


def tokens(length):
    ids = torch.randint(1000, 30000, (PAIRS, length), device="cuda")
    many = torch.randint(length // 2, length + 1, (PAIRS, 1), device="cuda")
    return ids, (torch.arange(length, device="cuda") < many).long()


for i in steps(count=4):
    texts = [tokens(QUERY), tokens(PASSAGE)]
    pieces = [[(a, b) for a, b in zip(ids.split(PIECE), mask.split(PIECE))] for ids, mask in texts]
    states, cached = [], []
    with torch.no_grad():
        for side in pieces:
            made = []
            for ids, mask in side:
                states.append(RandomState())
                made.append(embed(ids, mask))
            cached.append(torch.cat(made).detach().requires_grad_())
    q, p = cached
    scores = q @ p.T / TAU
    labels = torch.arange(PAIRS, device="cuda")
    loss = (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2
    loss.backward()
    grads = [g for c in cached for g in c.grad.split(PIECE)]
    for (ids, mask), state, grad in zip([x for side in pieces for x in side], states, grads):
        with state:
            again = embed(ids, mask)
        torch.dot(again.flatten(), grad.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
