"""What the page of public steps says beside its tables."""

from __future__ import annotations

KERNELS = """Kernels: vTrain's A100 by estimate-train-time's operators (fitted to all of them, no step among them),
the H100 by its own model (`devices.md`), NeuSight's A100 and the B200 transferred by data sheet. The B200's sheet
holds what SimuMax's authors measured of products and attention on one (a kernel at a time, no step); products and
attention are slowed by the energy of a step at the power limit, as measured on an H100 for these and else on an H200
(`strangers_kernels.md`). An H100's kernels beside collectives are slowed as measured on two of them (by what two H200s
and the power of one said before, nanotron's rows erred by 6.4 and 6.2 %, looked at and sealed), its attention by
flash-attention 2 and its eager kernels as measured on one (below). A host's launch is taken to need 10 us, as usual;
hosts of vTrain's and nanotron's programs need what their own code does (below) and 6.75 us for each launch (`fused
launch host us` of the H100's model). Lines with a factor are all of the set's predictions times one number, the
median of its development rows; the constant TFLOP/s is the one rate that fits the rows of its line best, known only
behind them. Peers' published errors: vTrain 8.4 % on one node, 14.7 % on several; NeuSight 7.7 %; SimuMax 5.6 % (the
last two also beside the rows here). vTrain's links: 800 Gbit/s a node at the share of their rate that measured
InfiniBand reaches; nanotron's: EFA as its authors measured it (`fabrics.md`)."""

DESCRIBED = """Programs are described as their public source has them. nanotron by huggingface/nanotron at the time of
its measurements (e24d248 of 2025-02-19): copies of heads around attention, lengths counted anew by each block, eager
activation and loss, products in shares beside the gathering of rows (of rows whose memory says that activations are
whole, none), layers dealt to stages by a running sum, two messages before each tensor that a stage sends; DDP in
buckets of 25 MiB of bfloat16 (its own default, `ddp_bucket_cap_mb`) as the backward ends with the weights, tables
last where input and output share them, without ZeRO; with ZeRO-1 one all-reduce of all float32 gradients behind the
last backward; all gradients clipped and set to zero, weights cast. Its times are those of each run's third step
alone, on the host's clock, its memory what the allocator had reserved (the allocated peak is set back before it is
read). Megatron-DeepSpeed's ranks of tensor parallelism each send their share of a tensor to the next stage, which
gathers it (`scatter_gather_tensors_in_pipeline`, its default). SimuMax by the launch scripts of MooreThreads/SimuMax
(Transformer Engine with its loss in place of the logits, an empty gradient of each weight's shape, all-to-alls around
attention for context parallelism, nothing of the collectives overlapped), Megatron-LM's loss by its in-place cross
entropy. NeuSight's shapes by sitar-lab/NeuSight's `DLmodel_configs` (6945927), its program by its
`collect_label_distributed.py` and what that calls: Megatron-LM's own training step (core_r0.5.0, by accelerate 1.0.0,
97d413ef), the optimizer in it. So scores in float32 are masked in place in a view (Megatron's softmax kernels are of
half precision), for which autograd copies their gradient four times and clears it once, and `baddbmm` copies the
buffer it is given; products add to gradients themselves; an input's gradient is summed over the ranks beside the
product of the weight's; the loss over a shared vocabulary is written step by step; gradients are scaled, reduced at
once behind the backward, clipped, and set to zero before the next step."""

ORIGIN = """Where rows come from (`python -m benchmarks.public.public_origin --tables VTRAIN`, of rows that were looked
at and of nanotron's below 20 % MFU, which no set scores). vTrain's rows on one node are published as measurements and
are none: they are what its simulator composes of kernels profiled on one A100. 187 of them, in 24 groups that differ in
layers and microbatches alone, lie on planes to the last of the digits that are given (nanoseconds; a relative 1e-14),
and of 93 pairs that differ in data parallelism alone, the times of 93 differ by what two entries of the simulator's own
tables of all-reduces differ, to the nanosecond (VIA-Research/vTrain at f8dda84, with its vocabulary of 50,257 words
that are not padded). So these rows say how near we come to a peer whose own error is given as 8.4 %, not to steps:
their host is that of a profiled run of one layer, their product with the vocabulary one whose columns no tile divides,
and what they repeat they repeat exactly. The simulator's tables are measured, and what our A100 says of 7,147 of their
entries, from 4 MiB on, is 1.6 % off in the mean (16 % at most). Those on several nodes have one digit behind the
millisecond, and two runs of one layout differ by 0.05 %. Three layouts of nanotron's were run twice or three times: 1
to 25 % apart.

nanotron's pipelines over several nodes, where they have tensor parallelism too, need as much for a block as their ranks
of tensor parallelism say, whatever its size: of rows that no set scores a tenth lie below 10.6, 14.6, 23.3, 49 and 124
ms with 2, 4, 8, 16 and 32 ranks, where of layouts without a pipeline it is 4.6 and 4.5 with 4 and 8; where the device
needs longer than that, it decides, so that it is the host that waits, for each rank a little more. The launch script of
these benchmarks (`run_multinode.sh` of `scripts/scaling_benchmarks.py`, in huggingface/nanotron as
`examples/mamba/run_multinode.sh`, 77f54c10 of 2025-03-10) sets `TORCH_DISTRIBUTED_DEBUG=DETAIL`: then the hosts of a
group meet over Gloo before each collective, one after the other, and compare what they are about to launch. Ten
collectives a block make that 0.2 to 0.3 ms for each rank. That these are the rows it launched is inferred, not stated;
that the script itself knows activations in shares alone is not what their memory says: with shares for all of them the
memory of the rows that were looked at would err by 13.3 % (-8.2 signed), and errs by 11.6 (-0.4) where each has the
mode that is nearer. What a check takes was measured on sixteen cores (`python -m
benchmarks.machines.checked_collectives --ranks 2 4 8 16 -o FILE`, 2026-11-23, torch 2.11.0, all ranks on one machine):
0.56, 1.05 and 1.67 ms among 2, 4 and 8 ranks, as a line {fixed_us:,.0f} us and {rank_us:,.0f} us for each rank. Ten of
them and a block's own host make 10.5, 14.1 and 21.4 ms, where a tenth of those rows lie below 10.6, 14.6 and 23.3;
groups over two nodes and more need longer than that line (36 and 65 ms where it is 49 and 124). It is priced for all
these rows, and nothing was set by it: without it nanotron's ratios were 11.3 and 10.0 % off (looked at, sealed), its
steps 8.0 and 7.8."""

HOSTS = """Hosts. One block of each program's own code on a CPU, with tensors of a few elements and a process group that
sends nothing (`python -m benchmarks.machines.framework_hosts`; torch 2.1.2 with its Triton 2.1, Python 3.11, one thread
of an AMD EPYC of family 25, as are those of nanotron's machines), microseconds of the thread's time, forward and
backward: Megatron-DeepSpeed (7bbd7f0e), everything recomputed, 990 and 2,050; where sequences times heads of a rank do
not divide by four its softmax is torch's: 1,130 and 2,310. nanotron (e24d248, flash-attention 2.5.8) without tensor
parallelism 1,450 and 1,350, with whole activations 1,510 and 1,410 (2 ranks) and 1,640 and 1,490 (more), with shares
1,720 and 1,720 (2 ranks), 1,940 and 1,940 (more). Other work ran beside (2026-11-23): each figure is of the least step
of the quietest of several runs, in the shares that its medians have; Megatron-DeepSpeed's of a run with a kernel put in
for its softmax; torch's softmax counts 1.13 times that, as in the quietest of three pairs of runs (0.96 and 0.94 in the
others, whose noise was larger). Medians of those runs are 8 to 16 % higher; runs of a busier hour took up to twice as
long, and so did a plain loop of Python's. Hosts by the medians of one such run (1,340 and 2,830 for
Megatron-DeepSpeed), and nothing for launches, give vTrain's rows on one node that were looked at 11.9 % (+7.4 signed),
nanotron's 8.0. Rows below 20 % MFU, which are scored nowhere, say what nanotron's blocks need at least: 4.46 ms (1B, 4
ranks, a sequence at a time, one node), 4.63 ms (8 ranks); here it is 4.4 with their launches."""

EAGER = """Eager kernels on an H100 (80 GB, torch 2.11.0+cu130, 2026-11-23; each for a tenth of a second, bytes read and
written over time; typed at a prompt what is now `python -m benchmarks.operators.eager_kernels_cuda -o FILE`): additions
of two bfloat16 tensors 3,055 GB/s; not vectorized are permuting copies of heads (1,430 to 1,510), activations of halves
of rows (SiLU 1,440, products 2,090, SiLU's backward 1,860), broadcast subtraction and division (2,480, 1,990), casts to
float32 (1,980) and bfloat16 gradients added to float32 ones (2,400); vectorized ones, concatenations and reductions
2,630 to 3,130. Flash-attention 2 took 1.54 and 1.59 times (forward, backward; heads of 64) and 1.92 and 1.75 times (of
128) as long as cuDNN's attention. A whole eager block of nanotron's sizes (plain torch, forward and backward, seconds
long; widths 2,048 and 4,096, 8,192 and 4,096 tokens) took 9.1 and 12.9 ms; as pieces it is priced at 8.7 and 12.2,
without the adding up of gradients, which it had none of.

A block of a GPT in float32 as Megatron-LM runs it, eager, on an H100 (2026-11-25, torch 2.11.0+cu130, the same as
above; `python -m benchmarks.operators.float32_blocks_cuda -o FILE`, which is `data/h100/float32_blocks_torch2.11.json`,
and `python -m benchmarks.operators.float32_blocks_cuda data/h100/float32_blocks_torch2.11.json` for what its pieces
say). Eight sizes, one rank's share, forward and backward without collectives: the pieces are 0.1 to 6.8 % off, 3.6 in
the mean, seven of eight too quick (before masks, copies of scores and sums of biases were pieces: 6 to 18 %). Products
of float32 and these blocks take the same in their first iterations behind a rest and after seconds: a power limit takes
nothing of them. Masks reach 2,420 GB/s where additions reach 3,030 (of what they read and write), softmax's backward,
two kernels, 1,510."""

COLUMNS = """Neighbours are layouts of one model, world and batch that differ by a factor of two between one or two
axes; in brackets how many pairs. The last column takes questions with at least four measured layouts."""

WRONG = """On 2026-11-25 two things were found by reading the looked-at rows beside the programs' source. A reduction
of gradients that waits for the last backward lay in front of what a stage of a pipeline sends to the one before it,
so that each stage's reduction was waited for by all before it; it lies behind it now, as in Megatron and nanotron
(looked at, sealed: SimuMax 3.0 to 2.4, 3.7 to 3.4 %; nanotron 6.8 to 6.4, 6.6 to 6.2, its ratios 7.8 to 7.5, 7.3 to
6.8; vTrain on several nodes 8.1 to 9.2, 11.0 to 11.6, all too quick now, its ratios 6.4 to 6.7, 9.5 to 9.3). And
NeuSight's program is described as above, its H100 with kernels that were measured (5.0 to 3.4, 10.8 to 5.7 %; 4.7 in
all, where the peer's own are 7.7). vTrain's rows on several nodes with eight ranks of tensor parallelism are 3 to 6 %
too quick since, nearly all alike; those with fewer are so too, or up to 20 % more: its 64-device rows as if gradients
went over one of four network cards wherever a group has more than one rank on a node, its 512-device rows not. That
was tried and not taken (looked at: 9.2 to 12.9 %). What they take more is no reduction: where four ranks of tensor
parallelism meet 32 copies and four stages on 512 devices, it is 1.1, 2.0 and 3.9 s with microbatches of 2, 4 and 6,
whose gradients are the same. Of looked-at neighbours those of one layout with another microbatch err by 2.3 % (15
pairs), all others by 8.3 (41).

What is left, from the rows looked at. nanotron: rows on few nodes whose device decides are 3 to 7 % too
quick, those of two tensor-parallel ranks 6 to 10 %; a third step may still be warming up, and the version of cuBLAS
is not stated. Tried and not taken, as it changed 0.1 % of the mean: Megatron-DeepSpeed's blocks wait for the device
(each forward puts two numbers on it, each backward asks whether two tensors are equal), so that no pass is launched
ahead of the one before. What changed the sealed figures, all rows of each set (before: vTrain 24.0 % on one node and
9.9 on several, nanotron 10.2): the hosts above; all-reduces over two nodes, whose bytes cross once; small messages
between two ranks, which make one hop. Since then: shares of tensors that are sent between stages (vTrain on several
nodes 12.4 to 11.0 %, its ratios 9.3 to 9.5). NCCL's authors say of two nodes that its trees go beyond the network's
rate (NVIDIA/nccl-tests#196, on two DGX A100s NVIDIA/nccl#812); of vTrain's rows on several nodes it betters the half
that was looked at (9.7 to 9.5 %) and worsens the sealed one (10.2 to 12.4 %), by six rows of 16 tensor-parallel ranks
on two nodes (7 to 30 % too quick): their 50 MB do not reach the rate of large messages, which no curve of an A100's
network tells. It was left as it is, as nothing is set by sealed rows. Memory: of SimuMax's rows all were looked at.
nanotron's mode of tensor parallelism is not stated: where activations are whole or shared it was taken from that
memory, so that its error is too kind; without tensor parallelism it is not. Megatron-LM's tests of two and four
tensor-parallel ranks without sequence parallelism lack 0.1 GB of 1 that is not explained. Not built: tests that fuse
the loss, defer gradients of the embedding or write a mask (only their names say so)."""
