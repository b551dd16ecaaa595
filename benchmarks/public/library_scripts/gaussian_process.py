import torch, gpytorch

train_x = torch.linspace(0, 1, 2000).cuda()
train_y = torch.sin(train_x * 6.28) + torch.randn(train_x.size(), device="cuda") * 0.2


class ExactGPModel(gpytorch.models.ExactGP):
    def __init__(self, train_x, train_y, likelihood):
        super().__init__(train_x, train_y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = ExactGPModel(train_x, train_y, likelihood).cuda()
model.train()
likelihood.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for i in range(30):
    optimizer.zero_grad()
    loss = -mll(model(train_x), train_y)
    loss.backward()
    print(
        "Iter %d - Loss: %.3f lengthscale: %.3f noise: %.3f"
        % (i + 1, loss.item(), model.covar_module.base_kernel.lengthscale.item(), model.likelihood.noise.item())
    )
    optimizer.step()
