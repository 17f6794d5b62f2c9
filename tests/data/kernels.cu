// The kernels that plans name, empty but for a store. Compiled with the options of dw__compile_options for sm_120.
extern "C" __global__ void dw_verify(int *p) { *p = 1; }
extern "C" __global__ void dw_combine(int *p) { *p += 1; }
extern "C" __global__ void dw_pack_mask(int *p) { *p += 2; }
extern "C" __global__ void dw_check(int *p) { *p += 3; }
