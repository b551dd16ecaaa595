import torch
from torch.utils.data import DataLoader, Dataset
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, get_linear_schedule_with_warmup
from tick import steps


class NLI(Dataset):
    def __init__(self, n=4096, length=192):
        self.ids = torch.randint(5, 128000, (n, length))
        self.lengths = torch.randint(64, length + 1, (n,))
        self.labels = torch.randint(0, 3, (n,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, n):
        mask = (torch.arange(self.ids.shape[1]) < self.lengths[n]).long()
        return {"input_ids": self.ids[n] * mask, "attention_mask": mask, "labels": self.labels[n]}


config = DebertaV2Config(
    vocab_size=128100,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    relative_attention=True,
    position_buckets=256,
    max_relative_positions=-1,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    position_biased_input=False,
    type_vocab_size=0,
    num_labels=3,
)
device = torch.device("cuda")
model = DebertaV2ForSequenceClassification(config).to(device)
model.train()

no_decay = ("bias", "LayerNorm.weight")
groups = []
for name, p in model.named_parameters():
    depth = int(name.split("layer.")[1].split(".")[0]) + 1 if "encoder.layer." in name else 0
    if name.startswith(("classifier", "pooler")):
        depth = 13
    decay = 0.0 if any(s in name for s in no_decay) else 0.01
    groups.append({"params": [p], "lr": 2e-5 * 0.9 ** (13 - depth), "weight_decay": decay})
optimizer = torch.optim.AdamW(groups, eps=1e-6)
scheduler = get_linear_schedule_with_warmup(optimizer, 50, 1000)
scaler = torch.amp.GradScaler("cuda")

norms = {}


def watch(name):
    def hook(module, inputs, output):
        norms[name] = output.detach().float().norm(dim=-1).mean()

    return hook


for n in (0, 5, 11):
    model.deberta.encoder.layer[n].output.register_forward_hook(watch(n))


def forever(loader):
    while True:
        yield from loader


loader = forever(DataLoader(NLI(), batch_size=48, shuffle=True, num_workers=4, drop_last=True, pin_memory=True))
running = 0.0
for i in steps():
    batch = {k: v.to(device, non_blocking=True) for k, v in next(loader).items()}
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(**batch)
    scaler.scale(out.loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad()
    running = 0.95 * running + 0.05 * out.loss.item()
