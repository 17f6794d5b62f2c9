// Two kernels with known resources: one with static shared memory and a named barrier, one with a local array.
extern "C" __global__ void __launch_bounds__(128) shared(float *p) {
  __shared__ float s[100];
  s[threadIdx.x] = p[threadIdx.x];
  asm volatile("bar.sync 3, 128;" ::: "memory");
  p[threadIdx.x] = s[99 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(256) local(float *p, int n) {
  float a[100];
#pragma unroll 1
  for (int i = 0; i < 100; i++) a[i] = p[i];
  p[0] = a[n % 100];
}
