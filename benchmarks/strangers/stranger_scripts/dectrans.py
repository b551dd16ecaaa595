import numpy as np
import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2Model
from tick import steps

torch.set_float32_matmul_precision("high")
STATE, ACT, K, BATCH, HID, MAX_EP = 17, 6, 30, 384, 384, 1000
device = "cuda"


class DecisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        config = GPT2Config(
            vocab_size=1,
            n_embd=HID,
            n_layer=6,
            n_head=6,
            n_inner=4 * HID,
            activation_function="relu",
            n_positions=1024,
            resid_pdrop=0.1,
            attn_pdrop=0.1,
            use_cache=False,
        )
        self.transformer = GPT2Model(config)
        self.embed_timestep = nn.Embedding(MAX_EP, HID)
        self.embed_return, self.embed_state, self.embed_action = (
            nn.Linear(1, HID),
            nn.Linear(STATE, HID),
            nn.Linear(ACT, HID),
        )
        self.embed_ln = nn.LayerNorm(HID)
        self.predict_action = nn.Sequential(nn.Linear(HID, ACT), nn.Tanh())

    def forward(self, states, actions, rtg, timesteps, mask):
        b, t = states.shape[:2]
        time = self.embed_timestep(timesteps)
        s, a, r = self.embed_state(states) + time, self.embed_action(actions) + time, self.embed_return(rtg) + time
        x = torch.stack((r, s, a), dim=1).permute(0, 2, 1, 3).reshape(b, 3 * t, HID)
        m = torch.stack((mask, mask, mask), dim=1).permute(0, 2, 1).reshape(b, 3 * t)
        x = self.transformer(inputs_embeds=self.embed_ln(x), attention_mask=m).last_hidden_state
        return self.predict_action(x.reshape(b, t, 3, HID).permute(0, 2, 1, 3)[:, 1])


rng = np.random.default_rng(0)
trajectories = []
for _ in range(200):
    n = int(rng.integers(200, MAX_EP))
    trajectories.append(
        {
            "observations": rng.standard_normal((n, STATE), dtype=np.float32),
            "actions": np.tanh(rng.standard_normal((n, ACT), dtype=np.float32)),
            "rtg": rng.standard_normal(n, dtype=np.float32).cumsum()[::-1].copy(),
        }
    )
lens = np.array([len(t["rtg"]) for t in trajectories])
p_sample = lens / lens.sum()


def get_batch():
    s, a, r = (
        np.zeros((BATCH, K, STATE), np.float32),
        np.full((BATCH, K, ACT), -10, np.float32),
        np.zeros((BATCH, K, 1), np.float32),
    )
    ts, m = np.zeros((BATCH, K), np.int64), np.zeros((BATCH, K), np.int64)
    for j, which in enumerate(rng.choice(len(trajectories), BATCH, p=p_sample)):
        traj = trajectories[which]
        si = int(rng.integers(0, lens[which]))
        n = min(K, lens[which] - si)
        s[j, K - n :], a[j, K - n :] = traj["observations"][si : si + n], traj["actions"][si : si + n]
        r[j, K - n :, 0], ts[j, K - n :], m[j, K - n :] = traj["rtg"][si : si + n] / 1000, np.arange(si, si + n), 1
    return [torch.from_numpy(x).to(device) for x in (s, a, r, ts, m)]


model = DecisionTransformer().to(device)
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 10000, 1))
losses = []
for i in steps():
    states, actions, rtg, timesteps, mask = get_batch()
    preds = compiled(states, actions, rtg, timesteps, mask)
    keep = mask.reshape(-1) > 0
    loss = torch.mean((preds.reshape(-1, ACT)[keep] - actions.reshape(-1, ACT)[keep]) ** 2)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    scheduler.step()
    losses.append(loss.detach().cpu().item())
