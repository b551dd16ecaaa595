import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet, Gate
from e3nn.math import soft_one_hot_linspace

irreps_in, irreps_out, irreps_sh = (
    o3.Irreps("16x0e + 8x1o"),
    o3.Irreps("16x0e + 8x1o"),
    o3.Irreps.spherical_harmonics(2),
)
tp = o3.FullyConnectedTensorProduct(irreps_in, irreps_sh, irreps_out, shared_weights=False).cuda()
fc = FullyConnectedNet([10, 64, tp.weight_numel], torch.relu).cuda()
opt = torch.optim.Adam([*fc.parameters()], lr=1e-2)
for i in range(300):
    pos, f = torch.randn(200, 3, device="cuda"), irreps_in.randn(200, -1).cuda()
    src, dst = torch.randint(200, (2, 4000), device="cuda")
    vec = pos[dst] - pos[src]
    sh = o3.spherical_harmonics(irreps_sh, vec, normalize=True, normalization="component")
    emb = soft_one_hot_linspace(vec.norm(dim=1), 0.0, 3.0, 10, basis="smooth_finite", cutoff=True)
    out = f.new_zeros(200, irreps_out.dim).index_add_(0, dst, tp(f[src], sh, fc(emb)))
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
