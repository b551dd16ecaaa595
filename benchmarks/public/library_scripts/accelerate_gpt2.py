import math, torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler, default_data_collator
from torch.utils.data import DataLoader, Dataset

acc = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")


class D(Dataset):
    def __len__(s):
        return 256

    def __getitem__(s, i):
        t = torch.randint(0, 50257, (512,))
        return {"input_ids": t, "labels": t.clone()}


train, ev = (
    DataLoader(D(), batch_size=8, shuffle=True, collate_fn=default_data_collator),
    DataLoader(D(), batch_size=8, collate_fn=default_data_collator),
)
model = GPT2LMHeadModel(GPT2Config())
nd = ["bias", "layer_norm.weight"]
opt = torch.optim.AdamW(
    [
        {"params": [p for n, p in model.named_parameters() if not any((x in n for x in nd))], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any((x in n for x in nd))], "weight_decay": 0.0},
    ],
    lr=5e-05,
)
sch = get_scheduler("linear", opt, 0, 100)
model, opt, train, ev, sch = acc.prepare(model, opt, train, ev, sch)
for epoch in range(3):
    model.train()
    for step, batch in enumerate(train):
        with acc.accumulate(model):
            loss = model(**batch).loss
            acc.backward(loss)
            opt.step()
            sch.step()
            opt.zero_grad()
    model.eval()
    losses = []
    for batch in ev:
        with torch.no_grad():
            out = model(**batch)
        losses.append(acc.gather_for_metrics(out.loss.repeat(8)))
    losses = torch.cat(losses)
    print(math.exp(torch.mean(losses)))
    acc.save_state("out")
