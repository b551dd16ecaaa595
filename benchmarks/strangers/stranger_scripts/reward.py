"""A reward model after the fashion of Trainer: pairs of answers, margins, accumulation, logs, a checkpoint resumed from."""

import csv, io, logging, time
from dataclasses import dataclass
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2Config, Qwen2ForSequenceClassification, get_linear_schedule_with_warmup
from tick import steps

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("reward")


@dataclass
class Arguments:
    per_device_batch: int = 8
    accumulation: int = 2
    learning_rate: float = 9e-6
    max_length: int = 768
    logging_steps: int = 10
    max_grad_norm: float = 1.0


args = Arguments()


class Pairs(Dataset):
    """Token ids of chosen and rejected answers, padded to the left of max_length."""

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(5, 32000, (2, args.max_length), generator=g)
        length = torch.randint(args.max_length // 2, args.max_length, (2, 1), generator=g)
        mask = (torch.arange(args.max_length) < length).long()
        return {"input_ids": ids * mask, "attention_mask": mask, "margin": torch.rand((), generator=g)}


config = Qwen2Config(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    num_labels=1,
    pad_token_id=0,
    use_cache=False,
)
torch.manual_seed(7)
model = Qwen2ForSequenceClassification(config).cuda().train()
for layer in model.model.layers:
    layer.compile()
opt = torch.optim.AdamW(model.parameters(), args.learning_rate, weight_decay=0.001, fused=True)
sched = get_linear_schedule_with_warmup(opt, 50, 2000)
state = io.BytesIO()
torch.save({"model": model.state_dict(), "sched": sched.state_dict(), "global_step": 0}, state)
state.seek(0)
resumed = torch.load(state, map_location="cuda", weights_only=True)
model.load_state_dict(resumed["model"])
sched.load_state_dict(resumed["sched"])
del resumed
loader = DataLoader(Pairs(), args.per_device_batch, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)


def batches():
    while True:
        yield from loader


table = csv.writer(io.StringIO())
feed, running, begun = batches(), torch.zeros((), device="cuda"), time.time()
for step in steps(count=6):
    for micro in range(args.accumulation):
        batch = {k: v.to("cuda", non_blocking=True) for k, v in next(feed).items()}
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(
                input_ids=batch["input_ids"].flatten(0, 1), attention_mask=batch["attention_mask"].flatten(0, 1)
            ).logits
        chosen, rejected = scores.float().view(-1, 2).unbind(1)
        loss = -F.logsigmoid(chosen - rejected - batch["margin"]).mean() + 0.01 * (chosen + rejected).square().mean()
        (loss / args.accumulation).backward()
        running += loss.detach() / args.accumulation
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
    opt.step()
    sched.step()
    model.zero_grad(set_to_none=True)
    if (step + 1) % args.logging_steps == 0:
        row = [step, running.item() / args.logging_steps, norm.item(), sched.get_last_lr()[0], time.time() - begun]
        table.writerow(row)
        log.info("step %d loss %.4f norm %.3f lr %.2e %.1f s", *row)
        running.zero_()
