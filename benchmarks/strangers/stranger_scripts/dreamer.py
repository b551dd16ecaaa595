"""DreamerV3-like: conv encoder, RSSM unrolled with GRU cells and straight-through categoricals, imagination, two-hot returns."""

import copy, torch, torch.nn as nn, torch.nn.functional as F
import torch.distributions as td
from tick import steps

B, T, HOR, A, DET, C, K, HID = 16, 32, 10, 6, 1024, 32, 32, 512


def mlp(i, o, n=2):
    l = []
    for _ in range(n):
        l += [nn.Linear(i, HID, bias=False), nn.LayerNorm(HID), nn.SiLU()]
        i = HID
    return nn.Sequential(*l, nn.Linear(i, o))


class World(nn.Module):
    def __init__(s):
        super().__init__()
        ch = [3, 48, 96, 192, 384]
        s.enc = nn.Sequential(
            *[
                m
                for a, b in zip(ch, ch[1:])
                for m in (nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.GroupNorm(1, b), nn.SiLU())
            ]
        )
        s.inp, s.cell = nn.Sequential(nn.Linear(C * K + A, HID), nn.SiLU()), nn.GRUCell(HID, DET)
        s.prior, s.post = mlp(DET, C * K, 1), mlp(DET + 384 * 16, C * K, 1)
        s.fc = nn.Linear(DET + C * K, 384 * 16)
        s.dec = nn.Sequential(
            *[m for a, b in zip(ch[:0:-1], ch[-2::-1]) for m in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.SiLU())][:-1]
        )
        s.rew, s.cont = mlp(DET + C * K, 255), mlp(DET + C * K, 1)

    def dist(s, logits):
        p = 0.99 * logits.float().view(-1, C, K).softmax(-1) + 0.01 / K
        return td.Independent(td.OneHotCategoricalStraightThrough(probs=p), 1)

    def img_step(s, h, z, a):
        h = s.cell(s.inp(torch.cat([z, a], -1)), h)
        return h, s.prior(h)

    def observe(s, emb, act):
        h, z = emb.new_zeros(B, DET), emb.new_zeros(B, C * K)
        hs, zs, pr, po = [], [], [], []
        for t in range(T):
            h, lp = s.img_step(h, z, act[:, t])
            lq = s.post(torch.cat([h, emb[:, t]], -1))
            z = s.dist(lq).rsample().flatten(1)
            hs.append(h), zs.append(z), pr.append(lp), po.append(lq)
        return [torch.stack(v, 1) for v in (hs, zs, pr, po)]


world, actor, critic = World().cuda(), mlp(DET + C * K, A, 3).cuda(), mlp(DET + C * K, 255, 3).cuda()
slow = copy.deepcopy(critic).requires_grad_(False)
bins = torch.linspace(-20, 20, 255, device="cuda")
symlog = lambda x: x.sign() * x.abs().log1p()
symexp = lambda x: x.sign() * (x.abs().exp() - 1)
value = lambda l: symexp((l.float().softmax(-1) * bins).sum(-1))


def twohot(logits, x):
    x = symlog(x).clamp(-20, 20)
    hi = torch.bucketize(x, bins).clamp(1, 254)
    lo = hi - 1
    w = (x - bins[lo]) / (bins[hi] - bins[lo])
    lp = logits.float().log_softmax(-1)
    return -(lp.gather(-1, lo[..., None]).squeeze(-1) * (1 - w) + lp.gather(-1, hi[..., None]).squeeze(-1) * w)


ow = torch.optim.Adam(world.parameters(), 1e-4, eps=1e-8)
oa, oc = torch.optim.Adam(actor.parameters(), 3e-5), torch.optim.Adam(critic.parameters(), 3e-5)
ret_range = torch.zeros((), device="cuda")
for i in steps(count=3):
    img = torch.rand(B, T, 3, 64, 64, device="cuda") - 0.5
    act = F.one_hot(torch.randint(0, A, (B, T), device="cuda"), A).float()
    rew, cont = torch.randn(B, T, device="cuda"), (torch.rand(B, T, device="cuda") > 0.01).float()
    emb = world.enc(img.flatten(0, 1)).flatten(1).view(B, T, -1)
    h, z, lp, lq = world.observe(emb, act)
    feat = torch.cat([h, z], -1)
    rec = world.dec(world.fc(feat.flatten(0, 1)).view(-1, 384, 4, 4))
    kl = lambda a, b: td.kl_divergence(world.dist(a), world.dist(b)).clamp(min=1.0).mean()
    lw = F.mse_loss(rec, img.flatten(0, 1), reduction="sum") / (B * T) + twohot(world.rew(feat), rew).mean()
    lw = (
        lw
        + F.binary_cross_entropy_with_logits(world.cont(feat).squeeze(-1), cont)
        + 0.5 * kl(lq.detach(), lp)
        + 0.1 * kl(lq, lp.detach())
    )
    ow.zero_grad()
    lw.backward()
    nn.utils.clip_grad_norm_(world.parameters(), 1000.0)
    ow.step()
    with torch.no_grad():
        h, z = h.reshape(-1, DET), z.reshape(-1, C * K)
        feats, acts = [torch.cat([h, z], -1)], []
        for k in range(HOR):
            a = td.OneHotCategorical(logits=actor(feats[-1])).sample()
            h, l = world.img_step(h, z, a)
            z = world.dist(l).sample().flatten(1)
            feats.append(torch.cat([h, z], -1))
            acts.append(a)
        feats, acts = torch.stack(feats), torch.stack(acts)
        r, c, v = value(world.rew(feats)), world.cont(feats).squeeze(-1).sigmoid() * 0.997, value(slow(feats))
        ret, out = v[-1], []
        for k in reversed(range(HOR)):
            ret = r[k + 1] + c[k + 1] * (0.05 * v[k + 1] + 0.95 * ret)
            out.append(ret)
        ret = torch.stack(out[::-1])
        q = torch.quantile(ret.flatten(), torch.tensor([0.05, 0.95], device="cuda"))
        ret_range.lerp_(q[1] - q[0], 0.01)
        adv = (ret - v[:-1]) / ret_range.clamp(min=1.0)
    pi = td.OneHotCategorical(logits=actor(feats[:-1]))
    la = -(pi.log_prob(acts) * adv + 3e-4 * pi.entropy()).mean()
    lc = twohot(critic(feats[:-1]), ret).mean()
    for o, l, m in ((oa, la, actor), (oc, lc, critic)):
        o.zero_grad()
        l.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 100.0)
        o.step()
    with torch.no_grad():
        for p, q in zip(critic.parameters(), slow.parameters()):
            q.data.mul_(0.98).add_(p.data, alpha=0.02)
