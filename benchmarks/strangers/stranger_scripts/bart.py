import random
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from transformers import BartConfig, BartForConditionalGeneration, get_linear_schedule_with_warmup
from tick import steps

PAD, BUDGET = 1, 16384


class Summaries(Dataset):
    def __init__(self, n=1200):
        rng = random.Random(0)
        self.lengths = sorted((rng.randint(300, 600), rng.randint(40, 120)) for _ in range(n))

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        s, t = self.lengths[i]
        return torch.randint(4, 50265, (s,)), torch.randint(4, 50265, (t,))


class TokenBatches:
    def __init__(self, lengths):
        self.batches, batch, longest = [], [], 0
        for i, (s, _) in enumerate(lengths):
            if max(longest, s) * (len(batch) + 1) > BUDGET:
                self.batches.append(batch)
                batch, longest = [], 0
            batch.append(i)
            longest = max(longest, s)

    def __iter__(self):
        while True:
            yield random.choice(self.batches)


def pad(rows, value):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def collate(items):
    src, tgt = zip(*items)
    ids, labels = pad(src, PAD), pad(tgt, -100)
    start = torch.full((len(tgt), 1), 2)
    shifted = torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, PAD)], 1)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "decoder_input_ids": shifted}, labels


config = BartConfig(
    d_model=768,
    encoder_layers=4,
    decoder_layers=4,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    dropout=0.1,
    use_cache=False,
)
model = BartForConditionalGeneration(config).cuda().train()
compiled = torch.compile(model, dynamic=True)
data = Summaries()
loader = DataLoader(data, batch_sampler=TokenBatches(data.lengths), collate_fn=collate, num_workers=2, pin_memory=True)
opt = torch.optim.AdamW(model.parameters(), lr=3e-5, eps=1e-8, weight_decay=0.01)
sched = get_linear_schedule_with_warmup(opt, 500, 20000)
criterion = nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)
batches = iter(loader)
losses = []
for i in steps(count=6):
    inputs, labels = next(batches)
    inputs = {k: v.to("cuda", non_blocking=True) for k, v in inputs.items()}
    labels = labels.to("cuda", non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = compiled(**inputs).logits
        loss = criterion(logits.view(-1, logits.size(-1)), labels.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    sched.step()
    opt.zero_grad()
    losses.append(loss.item())
