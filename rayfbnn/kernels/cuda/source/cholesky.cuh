// The inverse of a matrix's Cholesky factor in shared memory, by a block of threads.

// The lower triangle of a matrix: f(i, j), j <= i, for each place that is the thread's. Rows r and SIZE - 1 - r
// lie side by side, so that threads have equal shares.
template <int SIZE, class F> __device__ __forceinline__ void each_of_triangle(int matrices, F f) {
  constexpr int LENGTH = (SIZE + 1) / 2 * (SIZE + 1);
  for (int place = threadIdx.x; place < matrices * LENGTH; place += THREADS) {
    const int row = place % LENGTH / (SIZE + 1), column = place % LENGTH % (SIZE + 1);
    const bool is_upper = column >= SIZE - row;
    if (is_upper && 2 * row == SIZE - 1) continue;  // the middle row has no other
    f(place / LENGTH, is_upper ? row : SIZE - 1 - row, is_upper ? column - (SIZE - row) : column);
  }
}

// L^-1 of A = L L' in place of A's lower triangle, behind a barrier; rows are WIDTH apart, `v` has room for SIZE. A
// matrix that is not positive definite makes NaN.
//
// Columns of A that are done with are taken over by those of L^-1: with v the part l of column k behind its pivot
// and the part x of row k of L^-1 up to it, both divided by the pivot's root, a step is -v v' on the rows behind.
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
