// A piece of every chain's trajectory in one launch.
//
//   position, momentum   (n_chains, N_PARAMETERS); those at the end replace those at the start
//   stepsizes            (n_chains, N_PARAMETERS)
//   prior_energy, terms  (n_chains,), the results: the energy at the end
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) advance(
    real* position, real* momentum, const real* stepsizes, double* prior_energy, double* terms, int n_chains,
    int n_steps, DATA_ARGUMENTS) {
  const long long chain = chain_here(), vector = chain * N_PARAMETERS;
  if (chain >= n_chains) return;  // all threads of a warp alike
  Energy energy = {0, 0};
  run_piece({position + vector, momentum + vector, stepsizes + vector, position + vector, momentum + vector, n_steps,
             false},
            DATA_OF(chain), energy);
  sum_over_chain(energy);
  if (thread_of_chain() == 0) {
    terms[chain] = energy.terms;
    prior_energy[chain] = energy.prior;
  }
}
