import copy
import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

D, H, LAYERS, VOCAB, PROMPTS, GROUP, PLEN, NEW = 1024, 16, 8, 32000, 12, 8, 128, 32
ROWS, TOTAL = PROMPTS * GROUP, PLEN + NEW


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x, cache=None, at=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values = cache
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            mask = torch.arange(TOTAL, device=x.device) <= at[:, None]
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn = nn.RMSNorm(D), nn.RMSNorm(D), Attention()
        self.gu, self.down = nn.Linear(D, 2 * 2816, bias=False), nn.Linear(2816, D, bias=False)

    def forward(self, x, cache=None, at=None):
        x = x + self.attn(self.n1(x), cache, at)
        g, u = self.gu(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, D), nn.Embedding(TOTAL, D)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.RMSNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids, at, caches=None, last=False):
        x = self.wte(ids) + self.wpe(at)
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i], at)
        return self.head(self.norm(x[:, -1:] if last else x))


class Rollout(nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy
        for i in range(LAYERS):
            self.register_buffer(f"k{i}", torch.zeros(ROWS, H, TOTAL, D // H, dtype=torch.bfloat16))
            self.register_buffer(f"v{i}", torch.zeros(ROWS, H, TOTAL, D // H, dtype=torch.bfloat16))

    def forward(self, ids, at):
        caches = [(getattr(self, f"k{i}"), getattr(self, f"v{i}")) for i in range(LAYERS)]
        return self.policy(ids, at, caches, last=True)[:, 0].float()


def logprobs(model, ids):
    logits = model(ids[:, :-1], torch.arange(TOTAL - 1, device=ids.device))[:, PLEN - 1 :].float()
    return torch.gather(logits.log_softmax(-1), 2, ids[:, PLEN:, None]).squeeze(2)


policy = Policy().cuda().bfloat16()
reference = copy.deepcopy(policy).requires_grad_(False).eval()
rollout = Rollout(policy).cuda()
decode = torch.compile(rollout, mode="reduce-overhead", fullgraph=True)
logp = torch.compile(logprobs)
opt = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)
good = torch.rand(VOCAB, device="cuda") < 0.1


@torch.no_grad()
def generate(prompts):
    ids = prompts
    logits = rollout(ids, torch.arange(PLEN, device="cuda"))
    for n in range(NEW):
        token = torch.multinomial(F.softmax(logits / 0.9, -1), 1)
        ids = torch.cat([ids, token], 1)
        if n < NEW - 1:
            logits = decode(token, torch.tensor([PLEN + n], device="cuda"))
    return ids


for i in steps(count=4):
    prompts = torch.randint(0, VOCAB, (PROMPTS, PLEN), device="cuda").repeat_interleave(GROUP, 0)
    ids = generate(prompts)
    reward = good[ids[:, PLEN:]].float().mean(1).view(PROMPTS, GROUP)
    adv = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old, ref = logp(policy, ids), logp(reference, ids)
    for epoch in range(2):
        new = logp(policy, ids)
        ratio = (new - old).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        kl = (ref - new).exp() - (ref - new) - 1
        loss = -(surrogate - 0.04 * kl).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.1)
        opt.step()
        opt.zero_grad()
    log = {"reward": reward.mean().item(), "kl": kl.mean().item(), "loss": loss.item()}
