import torch, torch.nn as nn, pyro, pyro.distributions as dist
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam


class VAE(nn.Module):
    def __init__(self, z_dim=50, hidden=400):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(784, hidden), nn.Softplus())
        self.loc, self.scale = nn.Linear(hidden, z_dim), nn.Linear(hidden, z_dim)
        self.dec = nn.Sequential(nn.Linear(z_dim, hidden), nn.Softplus(), nn.Linear(hidden, 784), nn.Sigmoid())
        self.z_dim = z_dim
        self.cuda()

    def model(self, x):
        pyro.module("decoder", self.dec)
        with pyro.plate("data", x.shape[0]):
            z = pyro.sample(
                "latent",
                dist.Normal(x.new_zeros(x.shape[0], self.z_dim), x.new_ones(x.shape[0], self.z_dim)).to_event(1),
            )
            pyro.sample("obs", dist.Bernoulli(self.dec(z), validate_args=False).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.enc)
        with pyro.plate("data", x.shape[0]):
            h = self.enc(x)
            pyro.sample("latent", dist.Normal(self.loc(h), torch.exp(self.scale(h))).to_event(1))


pyro.clear_param_store()
vae = VAE()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1e-3}), loss=Trace_ELBO())
for epoch in range(40):
    total = 0.0
    for _ in range(20):
        total += svi.step(torch.rand(256, 784).cuda())
    print(epoch, total)
