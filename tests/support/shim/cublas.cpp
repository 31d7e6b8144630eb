// The functions of cuBLAS that rayfbnn/kernels/cublas.py calls, on the CPU: prototypes as in cublas_api.h, products as its
// documentation defines them, op(A) op(B) of matrices stored by columns.
#include <cstddef>
#include <cstdint>
#include <cstring>

struct cublasContext {
  void* stream;
  void* workspace;
  int compute;
};
typedef cublasContext* cublasHandle_t;
enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
static cublasContext the_context = {nullptr, nullptr, 0};

extern "C" int cublasCreate_v2(cublasHandle_t* handle) {
  *handle = &the_context;
  return SUCCESS;
}

extern "C" int cublasSetStream_v2(cublasHandle_t handle, void* stream) {
  handle->stream = stream;
  handle->workspace = nullptr;
  return SUCCESS;
}

extern "C" int cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  if (bytes == 0) return INVALID_VALUE;
  handle->workspace = workspace;
  return SUCCESS;
}

extern "C" void what_was_used(void** stream, void** workspace, int* compute) {
  *stream = the_context.stream;
  *workspace = the_context.workspace;
  *compute = the_context.compute;
}

// The number with the ten bits after the point that TF32 keeps, rounded to nearest.
static float in_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7F800000) != 0x7F800000) bits = (bits + 0x1000) & 0xFFFFE000;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

static float as_is(float x) { return x; }
static double as_is(double x) { return x; }

template <typename T, T (*rounded)(T)>
static void multiply(bool a_is_transposed, bool b_is_transposed, int m, int n, int k, T alpha, const T* a, int lda,
                     const T* b, int ldb, T beta, T* c, int ldc) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      T sum = 0;
      for (int l = 0; l < k; ++l) {
        const T left = a_is_transposed ? a[l + (long long)i * lda] : a[i + (long long)l * lda];
        const T right = b_is_transposed ? b[j + (long long)l * ldb] : b[l + (long long)j * ldb];
        sum += rounded(left) * rounded(right);
      }
      T& place = c[i + (long long)j * ldc];
      place = alpha * sum + (beta == 0 ? 0 : beta * place);
    }
  }
}

extern "C" int cublasGemmStridedBatchedEx(
    cublasHandle_t handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* A, int Atype,
    int lda, long long int strideA, const void* B, int Btype, int ldb, long long int strideB, const void* beta,
    void* C, int Ctype, int ldc, long long int strideC, int batchCount, int computeType, int algo) {
  if (handle != &the_context) return NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || batchCount < 0 || algo != -1) return INVALID_VALUE;
  if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m) return INVALID_VALUE;
  if (Atype != Btype || Atype != Ctype) return NOT_SUPPORTED;
  handle->compute = computeType;
  for (int batch = 0; batch < batchCount; ++batch) {
    if (Atype == 0 && (computeType == 68 || computeType == 77)) {
      const auto product = computeType == 77 ? multiply<float, in_tf32> : multiply<float, as_is>;
      product(transa, transb, m, n, k, *(const float*)alpha, (const float*)A + batch * strideA, lda,
              (const float*)B + batch * strideB, ldb, *(const float*)beta, (float*)C + batch * strideC, ldc);
    } else if (Atype == 1 && computeType == 70) {
      multiply<double, as_is>(transa, transb, m, n, k, *(const double*)alpha, (const double*)A + batch * strideA, lda,
                              (const double*)B + batch * strideB, ldb, *(const double*)beta,
                              (double*)C + batch * strideC, ldc);
    } else {
      return NOT_SUPPORTED;
    }
  }
  return SUCCESS;
}
