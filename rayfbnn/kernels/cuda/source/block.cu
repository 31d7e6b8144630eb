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
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) advance(KERNEL_ARGUMENTS) {
  DYNAMIC_SHARED_MEMORY(memory);
  real* shared = reinterpret_cast<real*>(memory);
  const long long chain = blockIdx.x, vector = chain * N_PARAMETERS;
  const Targets targets = TARGETS_OF(chain);
  const real factor = real(n_partitions * inverse_temperature[chain]);
  Own own;
  load(shared, own, position, momentum, stepsizes, precisions, vector);
  each_own([&](int i, int) { own.stepsize[i] /= n_partitions; });
  __syncthreads();

  const int last = n_steps < 0 ? 0 : n_steps * n_partitions;  // -1 stands for one kick, without energies
  for (int sub_step = 0; sub_step <= last; ++sub_step) {
    int begin = 0, end = n_cases;
    if (n_partitions > 1) {  // divisions of 64 bits take as long as a case
      const int part = order[chain * n_partitions + sub_step % n_partitions];
      begin = int((long long)n_cases * part / n_partitions);
      end = int((long long)n_cases * (part + 1) / n_partitions);
    }
    set_squares(shared, own);
    data_gradient(shared, inputs, targets, begin, end, factor);
    kick_and_drift(shared, own, sub_step, last);
    __syncthreads();
  }

  store(shared, own, position, momentum, vector);
  double terms_here = 0, prior_here = prior_energy_here(shared, own);
  const int n_with_energies = n_steps < 0 ? 0 : n_cases;
  for (int first = 0; first < n_with_energies; first += TILE) {
    load_inputs(shared, inputs, n_cases, first, n_cases);
    __syncthreads();
    forward_all<true>(shared);
    if (threadIdx.x < TILE && first + threadIdx.x < n_cases) {
      real v[N_OUTPUTS];
      load_outputs(shared, v);
      terms_here += terms_of_case(v, targets, first + threadIdx.x);
    }
  }
  __syncthreads();
  sum_over_block(shared, terms_here, prior_here);
  if (threadIdx.x == 0) {
    terms[chain] = terms_here;
    prior_energy[chain] = prior_here;
  }
}
