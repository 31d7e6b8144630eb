// The contract between the kernels that run trajectories (advance.cu, hybrid.cu) and the code of a chain's steps, which
// comes between this file and theirs: warp.cu, block.cu, or a form of regression.cuh.
//
// The code of the steps defines, for the threads of a chain, a warp or a thread block:
//   DATA_ARGUMENTS, DATA_OF(chain)  the kernel's arguments after the trajectory, and the ChainData made from them; its
//                                   function `potential` adds up the parts of an energy
//   BLOCKS_AT_ONCE                  thread blocks that a multiprocessor must have registers for at the same time
//   CHAIN_THREADS                   the number of threads of a chain
//   chain_here, thread_of_chain     the number of the thread's chain, and the thread's number among those of its chain
//   each_parameter(f)               calls f(parameter) for each parameter of the thread
//   run_piece                       runs a piece; adds the thread's shares of the energy at its end
//   sum_over_chain                  sums the shares of all threads, in a fixed order; thread 0 of the chain has the sums

// A piece of a chain's trajectory. Each array has N_PARAMETERS numbers. The end may replace the beginning.
struct Piece {
  const real *position, *momentum, *stepsizes;
  real *end_position, *end_momentum;
  int n_steps;  // -1 stands for one kick, without an energy; 0 for the energy alone, and the momentum is then of no use
  bool is_backwards;

  __device__ __forceinline__ real stepsize(int parameter) const {
    return is_backwards ? -stepsizes[parameter] : stepsizes[parameter];
  }
};

// Parts of a potential energy, without terms that are constant along a trajectory.
struct Energy {
  double prior;  // of the parameters
  double terms;  // log likelihood
};
