// Holds more values than the register limit allows.
extern "C" __global__ void __maxnreg__(32) spill(float *p) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = p[i * 128 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) p[i * 128 + threadIdx.x] = a[i] * a[63 - i];
}
