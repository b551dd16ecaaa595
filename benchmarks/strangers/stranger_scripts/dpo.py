"""DPO on packed sequences: transformers Mistral-like policy and frozen reference, document masks, checkpointing, Schedule."""

import copy
import torch
import torch.nn.functional as F
from transformers import MistralConfig, MistralForCausalLM, get_cosine_schedule_with_warmup
from tick import steps

T, DOCS = 2048, 8
cfg = MistralConfig(
    vocab_size=32000,
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=10,
    num_attention_heads=12,
    num_key_value_heads=4,
    sliding_window=None,
    attn_implementation="sdpa",
    use_cache=False,
)
policy = MistralForCausalLM(cfg).to("cuda", torch.bfloat16)
ref = copy.deepcopy(policy).eval().requires_grad_(False)
policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
policy.train()
opt = torch.optim.AdamW(policy.parameters(), 5e-7, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
sched = get_cosine_schedule_with_warmup(opt, 100, 5000)
ends = torch.tensor([256, 512, 700, 1000, 1300, 1500, 1800, 2048])
doc = torch.repeat_interleave(torch.arange(DOCS), torch.diff(ends, prepend=torch.zeros(1, dtype=torch.long))).cuda()
start = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]]).cuda()
position = torch.arange(T, device="cuda") - start[doc]
mask = ((doc[:, None] == doc[None]) & (torch.arange(T, device="cuda")[:, None] >= torch.arange(T, device="cuda")))[
    None, None
]
owner = doc[1:].clone()


def logps(model, ids):
    out = model(
        input_ids=ids,
        attention_mask=mask.expand(ids.size(0), -1, -1, -1),
        position_ids=position[None].expand(ids.size(0), -1),
    ).logits[:, :-1]
    lp = torch.gather(out.float().log_softmax(-1), 2, ids[:, 1:, None]).squeeze(-1)
    lp = lp * (doc[1:] == doc[:-1])
    return lp.new_zeros(ids.size(0), DOCS).index_add_(1, owner, lp)


for i in steps(count=4):
    ids = torch.randint(3, 32000, (2, T), device="cuda")
    with torch.no_grad():
        r = logps(ref, ids)
    p = logps(policy, ids)
    z = 0.1 * ((p[0] - r[0]) - (p[1] - r[1]))
    loss = -(F.logsigmoid(z) * 0.9 + F.logsigmoid(-z) * 0.1).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad(set_to_none=True)
