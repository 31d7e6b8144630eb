// Whole trajectories of networks whose state fits in shared memory: one thread block for each chain.

static_assert(TILE <= THREADS, "each case of a tile needs a thread");

// Loads the outputs at the thread's case of the tile.
__device__ __forceinline__ void load_outputs(const real* shared, real* v) {
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) v[o] = shared[slopes_of(OUTPUT_LAYER) + o * PITCH + threadIdx.x];
}

// Replaces the outputs by the derivatives with respect to them, one case for each thread, with zeros behind the last
// case.
__device__ __forceinline__ void likelihood(real* shared, const Targets& targets, int begin, int end, real factor) {
  if (threadIdx.x >= TILE) return;
  real v[N_OUTPUTS];
  load_outputs(shared, v);
  const int number = begin + threadIdx.x;
  if (number < end) {
    slopes_of_case(v, targets, number, factor);
  } else {
#pragma unroll
    for (int o = 0; o < N_OUTPUTS; ++o) v[o] = 0;
  }
#pragma unroll
  for (int o = 0; o < N_OUTPUTS; ++o) shared[slopes_of(OUTPUT_LAYER) + o * PITCH + threadIdx.x] = v[o];
}

// Adds `factor` times the gradient of the cases begin .. end - 1 to the gradient in shared memory.
__device__ __forceinline__ void data_gradient(real* shared, const real* inputs, const Targets& targets, int begin,
                                              int end, real factor) {
  for (int first = begin; first < end; first += TILE) {
    load_inputs(shared, inputs, targets.n_cases, first, end);
    __syncthreads();
    forward_all<false>(shared);
    likelihood(shared, targets, first, end, factor);
    __syncthreads();
    backward_all(shared, Nothing());
    __syncthreads();  // before the next tile takes the place of this one
  }
}

// Where shared memory allows two blocks on a multiprocessor, registers must too: with 256 threads and the 152 registers
// of 13-50-50-1 there would be one, and the other half of the shared memory would stay empty.
constexpr int BLOCKS_AT_ONCE = MIN_BLOCKS;

__device__ __forceinline__ void run_piece(const Piece& piece, const ChainData& data, Energy& energy) {
  DYNAMIC_SHARED_MEMORY(memory);
  real* shared = reinterpret_cast<real*>(memory);
  Own own;
  load(shared, own, piece, data.precisions);
  each_own([&](int i, int) { own.stepsize[i] /= data.n_partitions; });
  __syncthreads();

  const int last = piece.n_steps < 0 ? 0 : piece.n_steps * data.n_partitions;
  for (int sub_step = 0; sub_step <= last; ++sub_step) {
    const Cases cases = data.cases_at(piece, sub_step);
    set_squares(shared, own);
    data_gradient(shared, data.inputs, data.targets, cases.begin, cases.end, data.factor);
    kick_and_drift(shared, own, sub_step, last);
    __syncthreads();
  }

  store(shared, own, piece);
  energy.prior += prior_energy_here(shared, own);
  const int n_with_energies = piece.n_steps < 0 ? 0 : data.n_cases;
  for (int first = 0; first < n_with_energies; first += TILE) {
    load_inputs(shared, data.inputs, data.n_cases, first, data.n_cases);
    __syncthreads();
    forward_all<true>(shared);
    if (threadIdx.x < TILE && first + threadIdx.x < data.n_cases) {
      real v[N_OUTPUTS];
      load_outputs(shared, v);
      energy.terms += terms_of_case(v, data.targets, first + threadIdx.x);
    }
  }
  __syncthreads();
}
