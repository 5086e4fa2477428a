// Numbers below 1e-38 slow some processors down a hundred times: they count as zero while steps are taken.
#ifdef __SSE__
#define FLUSH_TINY_NUMBERS const unsigned mode = __builtin_ia32_stmxcsr(); __builtin_ia32_ldmxcsr(mode | 0x8040);
#define RESTORE_TINY_NUMBERS __builtin_ia32_ldmxcsr(mode);
#else
#define FLUSH_TINY_NUMBERS
#define RESTORE_TINY_NUMBERS
#endif
// Takes steps one after the other: the results of each become inputs of the next, and the number of the step rises.
extern "C" void repeat_step(long n, long n_steps, long n_tensors, long first_result, long n_results, void **tensors,
                            const long *advances, const long *kept_in, const long *sizes, char *memory,
                            const long *places) {
  FLUSH_TINY_NUMBERS
  void *own[n_tensors];
  for (long k = 0; k < n_tensors; k++) own[k] = tensors[k];
  for (long s = 0; s < n_steps; s++) {
    lanes_step(n, own, memory, places);
    for (long k = 0; k < n_results; k++) __builtin_memcpy(own[kept_in[k]], own[first_result + k], sizes[k]);
    *(vd *)own[2] += 1;
    for (long k = 0; k < n_tensors; k++) own[k] = (char *)own[k] + advances[k];
  }
  RESTORE_TINY_NUMBERS
}
