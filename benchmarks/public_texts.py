"""What the page of public steps says beside its tables."""

from __future__ import annotations

KERNELS = """Kernels: vTrain's A100 by estimate-train-time's operators (fitted to all of them, no step among them),
the H100 by its own model (`devices.md`), NeuSight's A100 and the B200 transferred by data sheet. The B200's sheet
holds what SimuMax's authors measured of products and attention on one (a kernel at a time, no step); products and
attention are slowed by the energy of a step at the power limit, as measured on an H200 (`strangers.md`). An H100's
kernels beside collectives are slowed as measured on two H200s, its attention by flash-attention 2 and its eager
kernels as measured on one (below). A host's launch is taken to need 10 us, as usual; the lines with other launches
take 60 us, read off vTrain's development rows on one node, most of which wait for their host, and off nothing else:
it is asked there whether that is what such an eager program needs, another one's and on other machines too. Lines
with a factor are all of the set's predictions times one number, the median of its development rows; the constant
TFLOP/s is the one rate that fits the rows of its line best, known only behind them. Peers' published errors: vTrain
8.4 % on one node, 14.7 % on several; NeuSight 7.7 %; SimuMax 5.6 % (the last two also beside the rows here). vTrain's
links: 800 Gbit/s a node at the share of their rate that measured InfiniBand reaches; nanotron's: EFA as its authors
measured it (`fabrics.md`)."""

DESCRIBED = """Programs are described as their public source has them. nanotron by huggingface/nanotron at the time of
its measurements (e24d248 of 2025-02-19): copies of heads around attention, lengths counted anew by each block, eager
activation and loss, products in shares beside the gathering of rows (of rows whose memory says that activations are
whole, none), layers dealt to stages by a running sum, two messages before each tensor that a stage sends; DDP in
buckets of 25 MiB of bfloat16 (its own default, `ddp_bucket_cap_mb`) as the backward ends with the weights, tables
last where input and output share them, without ZeRO; with ZeRO-1 one all-reduce of all float32 gradients behind the
last backward; all gradients clipped and set to zero, weights cast. Its times are those of each run's third step
alone, on the host's clock, its memory what the allocator had reserved (the allocated peak is set back before it is
read). SimuMax by the launch scripts of MooreThreads/SimuMax (Transformer Engine with its loss in place of the logits,
an empty gradient of each weight's shape, all-to-alls around attention for context parallelism, nothing of the
collectives overlapped), Megatron-LM's loss by its in-place cross entropy. NeuSight's shapes by sitar-lab/NeuSight's
`DLmodel_configs` (6945927)."""

EAGER = """Eager kernels on an H100 (80 GB, torch 2.11.0+cu130, 2026-11-23; each for a tenth of a second, bytes read
and written over time; typed at a prompt what is now `python benchmarks/eager_kernels_cuda.py -o FILE`): additions of
two bfloat16 tensors 3,055 GB/s; not vectorized are permuting copies of heads (1,430 to 1,510), activations of halves
of rows (SiLU 1,440, products 2,090, SiLU's backward 1,860), broadcast subtraction and division (2,480, 1,990), casts
to float32 (1,980) and bfloat16 gradients added to float32 ones (2,400); vectorized ones, concatenations and
reductions 2,630 to 3,130. Flash-attention 2 took 1.54 and 1.59 times (forward, backward; heads of 64) and 1.92 and
1.75 times (of 128) as long as cuDNN's attention. A whole eager block of nanotron's sizes (plain torch, forward and
backward, seconds long; widths 2,048 and 4,096, 8,192 and 4,096 tokens) took 9.1 and 12.9 ms; as pieces it is priced
at 8.7 and 12.2, without the adding up of gradients, which it had none of."""

COLUMNS = """Neighbours are layouts of one model, world and batch that differ by a factor of two between one or two
axes; in brackets how many pairs. The last column takes questions with at least four measured layouts."""

WRONG = """What is left, from the development rows. nanotron: without tensor parallelism 6 %; with it, microbatches of
one sequence wait for a host of which nothing is stated: without a pipeline a block takes no less than 4.5 ms of a
step for each microbatch, forward and backward, of models of 1 to 8 billion parameters, 2 to 8 tensor-parallel ranks
and 8 to 64 GPUs. Its layers (e24d248, run on a CPU with a group that sends nothing) call 66 to 70 operators a block
that compute, 104 to 116 that do not, and ten collectives: 1.3 ms at 10 us for each that computes and half of it for
the others, 4.5 ms at 60 us for each kernel. Some rows are up to twice as slow as their like (pipelines with tensor
parallelism and many small microbatches among them; a third step may still be warming up; rows that occur twice differ
by as much), and make the mean of the ratios. vTrain's steps on one node need their host, which is not stated. Memory:
of SimuMax's rows all were looked at. nanotron's mode of tensor parallelism is not stated: where activations are whole
or shared it was taken from that memory, so that its error is too kind; without tensor parallelism it is not.
Megatron-LM's tests of two and four tensor-parallel ranks without sequence parallelism lack 0.1 GB of 1 that is not
explained. Not built: tests that fuse the loss, defer gradients of the embedding or write a mask (only their names say
so). Before gradients were reduced in a reducer's buckets, and with an XL of NeuSight's that was taken to be 2,048
wide with 16 heads, the sealed rows were: nanotron 10.2 % (ratios of neighbours 11.8, first layouts 2.3 % over the
best, 16 of 19), NeuSight 12.4 % (its two development rows 30.2); rows of 64 and more data-parallel ranks without ZeRO
were 14 to 20 % too quick. The rows of vTrain and SimuMax, which reduce behind the last backward, are as they were."""
