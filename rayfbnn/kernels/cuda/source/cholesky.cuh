// The inverse of a matrix's Cholesky factor in shared memory, computed by a thread block.

// Calls f(matrix, i, j) for the thread's share of the places j <= i of each lower triangle. Rows r and SIZE - 1 - r are
// put side by side to give the threads equal shares.
template <int SIZE, class F> __device__ __forceinline__ void each_of_triangle(int matrices, F f) {
  constexpr int LENGTH = (SIZE + 1) / 2 * (SIZE + 1);
  for (int place = threadIdx.x; place < matrices * LENGTH; place += THREADS) {
    const int row = place % LENGTH / (SIZE + 1), column = place % LENGTH % (SIZE + 1);
    const bool is_upper = column >= SIZE - row;
    if (is_upper && 2 * row == SIZE - 1) continue;  // the middle row has no second row next to it
    f(place / LENGTH, is_upper ? row : SIZE - 1 - row, is_upper ? column - (SIZE - row) : column);
  }
}

// Replaces the lower triangle of A = L L' by L^-1. A barrier must come before, and the last one is inside. Rows are
// WIDTH apart, and `v` has room for SIZE numbers. A matrix that is not positive definite gives NaN.
//
// The columns of L^-1 take the places of the columns of A that are no longer needed. The vector v holds the part of row
// k of L^-1 up to the pivot and the part of column k of A behind it, both divided by the root of the pivot. Step k then
// adds -v v' to the rows below.
template <int SIZE, int WIDTH> __device__ __forceinline__ void factorise(double* a, double* v) {
  for (int k = 0; k < SIZE; ++k) {
    const double pivot = a[k * WIDTH + k], scale = pivot > 0 ? 1 / sqrt(pivot) : nan("");
    for (int j = threadIdx.x; j < SIZE; j += THREADS) {
      v[j] = scale * (j < k ? a[k * WIDTH + j] : j > k ? a[j * WIDTH + k] : 1.0);
    }
    __syncthreads();
    for (int place = k * SIZE + threadIdx.x; place < SIZE * SIZE; place += THREADS) {
      const int i = place / SIZE, j = place % SIZE;
      if (j > i) continue;
      double& to = a[i * WIDTH + j];
      to = i == k ? v[j] : (j == k ? 0.0 : to) - v[i] * v[j];
    }
    __syncthreads();
  }
}
