// The runner of the host twin: fibers, barriers, copies, and the checks on all of them. host.h says what is checked.
//
// A lane is a fiber with its own stack. It runs until it needs others: at a collective until the last of the 32 lanes arrives
// and does the work for all, at a barrier until the barrier completes. Then the next fiber is chosen by the launch's order and
// entered directly; the main context comes back only when a cluster has ended or something failed. A failure is an exception
// up to the fiber's first frame; the other fibers are then left where they stand, holding nothing that needs freeing.
#include "host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#define DW_HOST_TABLE_ONLY
#include "draftwood_host.h"

#if defined(DW_HOST_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#include <ucontext.h>
#define DW_UCONTEXT 1
#endif

extern char **environ;

// Present only in a program built with AddressSanitizer, which has to hear of every change of stack.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **fake_save, const void *bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *fake, const void **old_bottom, size_t *old_size);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile *p, size_t n);
__attribute__((weak)) void *__asan_region_is_poisoned(void *p, size_t n);
}

// Saves the callee-saved registers and the stack pointer, loads the other's. The C++ code sees an ordinary call.
#if defined(DW_UCONTEXT)
#elif defined(__x86_64__)
asm(R"(
  .text
  .p2align 4
  .globl dw__fiber_switch
  .hidden dw__fiber_switch
  .type dw__fiber_switch, @function
dw__fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size dw__fiber_switch, .-dw__fiber_switch
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .p2align 4
  .globl dw__fiber_switch
  .hidden dw__fiber_switch
  .type dw__fiber_switch, %function
dw__fiber_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size dw__fiber_switch, .-dw__fiber_switch
)");
#endif
#ifndef DW_UCONTEXT
extern "C" __attribute__((visibility("hidden"))) void dw__fiber_switch(void **save, void *load);
#endif

namespace {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef dw_host_fn Fn;

constexpr u32 kWindow = 1152;   // smem_base()
constexpr u32 kRankShift = 24;  // a mapped address is (rank + 1) << 24 | window address
constexpr u32 kMaxRegisters = 65536;
constexpr u32 kAgentsPerCta = 128;  // mbarriers
constexpr u32 kAll = 0xffffffff;

const char *const kNames[] = {
#define X(name) #name,
  DW_HOST_FUNCTIONS(X)
#undef X
};

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return line;
}

// ---- what a thread knows --------------------------------------------------------------------------------------
// A vector clock. Entry i: all that thread i did up to its clock v[i] came before. Beyond the threads: one entry that is 1
// after grid_dependency_wait, and one for each mbarrier, whose clock is its number of completed phases and which "writes" the
// bytes of the copies that it completes.
//   r: like v but of reads only; the relaxed arrivals raise it alone. Equal to v until has_r.
//   f: what a fence.proxy.async covered of it. All zero until has_f.
// Shared between the lanes that know the same (nearly always all of a warp); whoever wants to change one that is shared
// copies it first. A thread's own entry is not kept here but in the thread.
struct Know {
  u32 refs;
  bool has_r, has_f;
  Know *next_free;
  s32 v[1];
};

class Knows {
public:
  void reset(u32 capacity) {
    clear();
    capacity_ = capacity;
    used = 0;
  }
  ~Knows() { clear(); }
  Know *fresh() {
    Know *k = take();
    k->has_r = k->has_f = false;
    memset(k->v, 0, capacity_ * sizeof(s32));
    return k;
  }
  Know *copy(const Know *from) {
    Know *k = take();
    k->has_r = from->has_r;
    k->has_f = from->has_f;
    memcpy(k->v, from->v, capacity_ * sizeof(s32));
    if (k->has_r) memcpy(r(k), r(from), capacity_ * sizeof(s32));
    if (k->has_f) memcpy(f(k), f(from), capacity_ * sizeof(s32));
    return k;
  }
  void drop(Know *k) {
    if (!k || --k->refs) return;
    k->next_free = free_;
    free_ = k;
  }
  s32 *r(Know *k) const { return k->v + capacity_; }
  s32 *f(Know *k) const { return k->v + 2 * capacity_; }
  const s32 *r(const Know *k) const { return k->v + capacity_; }
  const s32 *f(const Know *k) const { return k->v + 2 * capacity_; }
  const s32 *reads(const Know *k) const { return k->has_r ? r(k) : k->v; }
  void use_r(Know *k) {
    if (!k->has_r) memcpy(r(k), k->v, capacity_ * sizeof(s32));
    k->has_r = true;
  }
  void use_f(Know *k) {
    if (!k->has_f) memset(f(k), 0, capacity_ * sizeof(s32));
    k->has_f = true;
  }
  void absorb(Know *to, const Know *from) {
    if (from->has_r) use_r(to);
    if (from->has_f) use_f(to);
    if (to->has_r) raise(r(to), reads(from));
    if (from->has_f) raise(f(to), f(from));
    raise(to->v, from->v);
  }
  void absorb_reads(Know *to, const Know *from) {
    use_r(to);
    raise(r(to), reads(from));
  }
  void fence(Know *k) {
    use_f(k);
    raise(f(k), k->v);
  }

  u32 used = 0;  // entries that can differ from zero

private:
  void raise(s32 *__restrict__ to, const s32 *__restrict__ from) {
    for (u32 i = 0; i < used; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
  }
  Know *take() {
    Know *k = free_;
    if (k) {
      free_ = k->next_free;
    } else {
      k = (Know *)malloc(sizeof(Know) + 3 * capacity_ * sizeof(s32));
      if (!k) throw std::bad_alloc();
      all_.push_back(k);
    }
    k->refs = 1;
    return k;
  }
  void clear() {
    for (Know *k : all_) free(k);
    all_.clear();
    free_ = nullptr;
  }
  u32 capacity_ = 0;
  Know *free_ = nullptr;
  std::vector<Know *> all_;
};

// ---- shared memory --------------------------------------------------------------------------------------------
// Masks name the eight two-byte halves of a line of 16 bytes.
struct WriteRecord {
  s32 clock;
  u16 writer;  // thread or mbarrier
  u8 mask, fn;
};
struct ReadRecord {
  s32 clock;
  u32 lanes;  // of the warp, which read at the same clock
  u16 warp;
  u8 mask, fn;
};
struct Line {
  u8 valid;     // written
  u8 flight;    // destination of a copy under way
  u8 barrier;   // part of an mbarrier
  u8 n_writes;  // their masks are disjoint
  u32 n_reads;
  WriteRecord w[8];
  ReadRecord r[3];
  std::vector<ReadRecord> *more;  // reads from the fourth on

  ReadRecord &read(u32 i) { return i < 3 ? r[i] : (*more)[i - 3]; }
};

struct Thread;
struct Warp;
struct Cta;
struct Mbarrier;

struct Copy {
  Cta *cta;
  u32 at, size;  // destination, bytes
  const u8 *source;
  u32 source_size;  // the rest is zero
  u8 value[16];     // of st_async; source is NULL
  Fn fn;
  u32 issuer;
  u32 group, sequence;  // of cp.async
};

struct Deferred {  // cp_async_mbarrier_arrive: arrives when the thread's copies before `before` are done
  Thread *thread;
  u32 before;
};
struct Waited {  // a thread that waited for a phase
  u32 thread;
  s32 clock;       // what others know of it from its return on
  u32 checkpoint;  // of its warp, the next then
};

struct Mbarrier {
  Cta *cta;
  u32 at, count, pending, phase, agent;
  s64 tx;  // announced and not yet arrived
  u32 init_thread;
  s32 init_clock;
  u64 init_time;
  bool fenced;
  Know *acc;   // of this phase's arrivals and all before
  Know *last;  // absorbed last; saves doing it again for 31 more lanes
  Know *done;  // acc of the last completed phase
  u64 flight_bytes;
  std::vector<Copy> flights;
  std::vector<Deferred> deferred;
  std::vector<Thread *> waiting;
  std::vector<Waited> waited;  // for the last completed phase
};

struct Context {
#ifdef DW_UCONTEXT
  ucontext_t uc;
#else
  void *sp;
#endif
  void *fake;  // AddressSanitizer's
  const void *bottom;
  size_t size;
};

enum class Wait : u8 { kNone, kCollective, kMbarrier, kPoll, kDone };
enum class WarpWait : u8 { kNone, kNamed, kCluster, kRegisters };

struct ByAgent {
  u32 group, agent;
  s32 clock;
};

struct Thread {
  Context context;
  Warp *warp;
  u32 id, lane;
  s32 own, own_fenced;
  u64 fence_time;
  Know *know;
  dw_host_place place;
  Wait wait;
  Mbarrier *bar;
  u32 parity;
  Know *granted;
  std::vector<Copy> copies;  // cp.async under way
  u32 group, sequence, deferred_before;
  s32 deferred_clock;
  std::vector<ByAgent> by_agent;  // copies that an mbarrier completed, for a later wait_group
  u32 polls;
};

struct Warp {
  u32 index, rank;      // rank: the lower, the sooner its turn
  u32 ready, live, at;  // lanes
  Fn fn;
  Thread *threads;
  Cta *cta;
  WarpWait wait;
  u32 wait_arg[2];
  u32 cluster_phase;  // arrivals of its own at the cluster barrier
  bool cluster_pending;
  Know *cluster_granted;
  u32 registers;
  // Clocks that all lanes had at a collective, the first after each wait for an mbarrier: it takes the waits' word further.
  std::vector<s32> checkpoints;
  bool checkpoint_due;
  // arguments of the collective under way, by lane
  u32 arg[32], arg2[32], out[32];
  const u32 *a[32], *b[32];
  u32 *r[32];
  float *d[32];
  // the last acquire: the 31 lanes after the first find the result here
  Know *memo_a, *memo_b, *memo_out;
};

struct Named {
  u32 expected, arrived;
  u32 warps;    // that arrived, a bit each
  u32 waiting;  // of them, those that wait
  Know *acc, *last;
};

struct Group {  // of four warps, for setmaxnreg
  u32 seen, n;
  Fn fn;
};

struct Cta {
  u32 rank, live_warps;
  dw_host_dim block;
  u8 *data;
  Line *lines;
  u32 size;
  Warp *warps;
  Named named[16];
  Group groups[8];
  u32 pool;  // registers that no warp holds
  std::deque<Mbarrier> bars;
  std::vector<s32> touched;  // by thread of the cluster: clock of its last access from outside
  bool ended;
};

class Runner;
thread_local Runner *current_runner;

class Runner {
public:
  Runner(const dw_host_launch &launch, dw_host_report &report) : launch_(launch), report_(report) {}
  ~Runner();
  void run();

  // The table's functions.
  const dw_host_place *place() { return &me_->place; }
  u32 lanes(Fn fn, u32 v, u32 arg);
  void load(Fn fn, u32 a, void *to, u32 n);
  void store(Fn fn, u32 a, const void *from, u32 n);
  void matrix(Fn fn, u32 a, u32 *r);
  void mma(Fn fn, float *d, const u32 *a, const u32 *b);
  void global(Fn fn, const void *p, u32 n);
  void copy(Fn fn, u32 dst, const void *src, u32 n, u32 bar);
  void copy_group(Fn fn, u32 arg);
  void fence(Fn fn);
  void barrier(Fn fn, u32 id, u32 n);
  u32 mbarrier(Fn fn, u32 a, u32 arg);
  void registers(Fn fn, u32 n);
  u32 cluster(Fn fn, u32 a, u32 rank);
  void st_async(Fn fn, u32 a, const void *v, u32 n, u32 bar);
  void grid(Fn fn);

private:
  struct Place {
    Cta *cta;
    u32 at;
  };

  // set-up
  void check_launch();
  void make_stacks();
  void start_cluster(u64 index);
  void end_cluster();
  static void fiber_main();
  void fiber_end();

  // scheduling
  void call(Fn fn, bool may_switch);
  void jump(Context &from, Context &to, bool dying);
  void switch_away(bool dying = false);
  void change_mood();
  Warp *next_warp();
  bool idle();
  void wake(Warp &w, u32 lanes);
  void set_ready(Warp &w) { ready_[w.rank / 64] |= 1ull << (w.rank % 64); }
  u64 random() {
    rng_ ^= rng_ << 13;
    rng_ ^= rng_ >> 7;
    return rng_ ^= rng_ << 17;
  }
  bool is_random() const { return launch_.order == DW_HOST_RANDOM; }
  bool late() { return copies_late_ == 2 ? random() >> 20 & 1 : copies_late_; }
  void poll();
  bool collective(Fn fn);
  void release(Warp &w);

  // failing
  [[noreturn]] void fail(dw_host_status status, const std::string &message);
  [[noreturn]] void deadlock();
  void out_of_memory() {
    failed_ = true;
    report_.status = DW_HOST_SYSTEM;
    snprintf(report_.message, sizeof report_.message, "Out of memory.");
  }
  std::string who(u32 id) const;
  std::string me(Fn fn) const { return text("%s by %s", kNames[fn], who(me_->id).c_str()); }
  std::string bar_state(const Mbarrier &b) const;

  // knowledge
  void keep(Know *&place, Know *k) {
    if (k) ++k->refs;
    knows_.drop(place);
    place = k;
  }
  template <class Make> void learn(Thread &t, Know *tag, Make make);
  void acquire(Thread &t, Know *k);
  void publish(Thread &t, Know *acc, Know *&last, bool relaxed = false);
  void share(Warp &w, Know *acc);
  s32 level(Warp &w);
  bool sees_write(const Thread &t, const WriteRecord &w) const { return w.writer == t.id || w.clock <= t.know->v[w.writer]; }
  u32 unseen_readers(const Thread &t, const ReadRecord &r) const;

  // shared memory
  Place locate(Fn fn, const Thread &t, u32 a, u32 n, u32 align, bool cluster);
  void outside(Fn fn, const Thread &t, Cta &c);
  void check_read(Fn fn, Thread &t, Cta &c, u32 at, u32 mask);
  void check_read_slow(Fn fn, Thread &t, Cta &c, u32 at, u32 mask);
  void check_write(Fn fn, Thread &t, Cta &c, u32 at, u32 mask);
  void put_write(Line &line, u32 mask, u32 writer, s32 clock, Fn fn);
  void put_read(Line &line, Thread &t, u32 mask, Fn fn);
  void no_flight(Fn fn, const Thread &t, Cta &c, u32 at, u32 mask);
  std::string cell(const Cta &c, u32 at) const;
  void take_off(Fn fn, Thread &t, Copy &copy);
  void deliver(const Copy &copy, u32 writer, s32 clock);

  // barriers
  Mbarrier &find_bar(Fn fn, Thread &t, u32 a, bool cluster);
  Know *arrivals(Mbarrier &b) {
    if (!b.acc) b.acc = b.done ? knows_.copy(b.done) : knows_.fresh();
    return b.acc;
  }
  void settle(Mbarrier &b);
  bool can_finish(const Mbarrier &b) const {
    return b.pending == b.deferred.size() && (b.tx == (s64)b.flight_bytes || b.tx == 0);
  }
  bool try_finish(Mbarrier &b);
  void note_wait(Mbarrier &b, Thread &t) {
    b.waited.push_back({t.id, t.own, (u32)t.warp->checkpoints.size()});
    t.warp->checkpoint_due = true;
  }
  void check_waited(Mbarrier &b, const Know *acc);
  void complete(Mbarrier &b);
  void arrive(Fn fn, Thread &t, Mbarrier &b, bool relaxed);
  void wait(Fn fn, Thread &t, Mbarrier &b, u32 parity);
  void settle_cluster();
  void check_bytes(Fn fn, const void *p, u64 n, bool write, bool nc);

  const dw_host_launch &launch_;
  dw_host_report &report_;
  u32 block_threads_ = 0, ctas_ = 0, warps_per_cta_ = 0, n_threads_ = 0, n_warps_ = 0;
  dw_host_dim grid_{}, block_{}, cluster_{};
  std::vector<dw_host_buffer> buffers_;
  size_t stack_bytes_ = 0, stack_stride_ = 0;
  u8 *stacks_ = nullptr;

  Knows knows_;
  std::vector<Cta> cta_;
  std::vector<Warp> warps_;
  std::vector<Thread> threads_;
  std::vector<Warp *> by_rank_;
  std::vector<u64> ready_;  // by rank; may lag behind Warp::ready where that has become 0
  bool any_rank_ = false;
  u32 copies_late_ = 0, mood_left_ = 0;  // 0 no, 1 yes, 2 now so, now so
  std::vector<Thread *> pollers_;
  Thread *me_ = nullptr;
  Context main_{};
  u32 live_ = 0;
  u64 rng_ = 0, time_ = 0, calls_ = 0, max_calls_ = 0, idle_polls_ = 0;
  Know grid_tag_{1, false, false, nullptr, {0}}, fence_tag_{1, false, false, nullptr, {0}};  // learn()'s names for the two
  Know *cluster_acc_ = nullptr;
  Know *cluster_last_ = nullptr;
  bool failed_ = false;
};

struct Failure {};

// ---- failing --------------------------------------------------------------------------------------------------
void Runner::fail(dw_host_status status, const std::string &message) {
  report_.status = status;
  snprintf(report_.message, sizeof report_.message, "%s", message.c_str());
  failed_ = true;
  throw Failure();
}

std::string Runner::who(u32 id) const {
  if (id >= n_threads_) {
    if (id == n_threads_) return "the previous grid";
    for (const Cta &c : cta_) {
      for (const Mbarrier &b : c.bars) {
        if (b.agent == id) return "a copy on the mbarrier at " + cell(c, b.at);
      }
    }
    return "a copy";
  }
  const Cta &c = *threads_[id].warp->cta;
  u32 i = id % block_threads_;
  return text("CTA (%u,%u,%u) warp %u lane %u", c.block.x, c.block.y, c.block.z, i / 32, i % 32);
}

std::string Runner::cell(const Cta &c, u32 at) const {
  std::string s = text("shared byte %u", at);
  return ctas_ > 1 ? s + text(" of CTA rank %u", c.rank) : s;
}

std::string Runner::bar_state(const Mbarrier &b) const {
  std::string s = text("phase %u has %u of %u arrivals", b.phase, b.count - b.pending, b.count);
  if (b.tx) s += text(" and waits for %lld bytes, of which %llu are under way", b.tx, b.flight_bytes);
  return s;
}

// One line for each warp: what its lanes wait for.
void Runner::deadlock() {
  std::string s = "Deadlock: no thread can run.\n";
  dw_host_status status = DW_HOST_DEADLOCK;
  for (Warp &w : warps_) {
    if (!w.live) continue;
    std::string head = text("CTA (%u,%u,%u) warp %u", w.cta->block.x, w.cta->block.y, w.cta->block.z, w.index % warps_per_cta_);
    if (w.wait == WarpWait::kNamed) {
      Named &n = w.cta->named[w.wait_arg[0]];
      s += head + text(" waits in barrier_sync(%u, %u): %u of %u threads arrived.\n", w.wait_arg[0], w.wait_arg[1], n.arrived,
                       n.expected);
    } else if (w.wait == WarpWait::kCluster) {
      s += head + text(" waits in cluster_wait for phase %u.\n", w.cluster_phase - 1);
    } else if (w.wait == WarpWait::kRegisters) {
      s += head + text(" waits in registers_inc<%u>: it has %u a thread, and %u are free of the %u that it needs more.\n",
                       w.wait_arg[0], w.registers, w.cta->pool, (w.wait_arg[0] - w.registers) * 32);
      status = DW_HOST_REGISTERS;
    } else {
      u32 left = w.live;
      while (left) {  // lanes that wait for the same thing together
        const Thread &t = w.threads[__builtin_ctz(left)];
        u32 same = 0;
        for (u32 l = 0; l < 32; ++l) {
          const Thread &o = w.threads[l];
          bool equal = o.wait == t.wait && (t.wait != Wait::kMbarrier || (o.bar == t.bar && o.parity == t.parity));
          if ((left >> l & 1) && equal) same |= 1u << l;
        }
        left &= ~same;
        s += head + (same == kAll ? std::string() : text(" lanes %08x", same));
        if (t.wait == Wait::kCollective) {
          s += text(" waits in %s for its other lanes.\n", kNames[w.fn]);
        } else if (t.wait == Wait::kMbarrier) {
          s += text(" waits in mbarrier_wait(parity %u) at %s: ", t.parity, cell(*t.bar->cta, t.bar->at).c_str()) +
               bar_state(*t.bar) + ".\n";
        } else {
          s += " waits.\n";
        }
      }
    }
  }
  fail(status, s);
}

// ---- scheduling -----------------------------------------------------------------------------------------------
void Runner::jump(Context &from, Context &to, bool dying) {
  bool asan = &__sanitizer_start_switch_fiber != nullptr;
  if (asan) __sanitizer_start_switch_fiber(dying ? nullptr : &from.fake, to.bottom, to.size);
#ifdef DW_UCONTEXT
  swapcontext(&from.uc, &to.uc);
#else
  dw__fiber_switch(&from.sp, to.sp);
#endif
  if (asan) __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
}

void Runner::wake(Warp &w, u32 lanes) {
  w.ready |= lanes;
  set_ready(w);
}

// Something that only happens when nothing else can: a copy arrives, a poller looks again.
bool Runner::idle() {
  for (Cta &c : cta_) {
    u32 n = c.bars.size(), first = is_random() && n ? random() % n : 0;
    for (u32 i = 0; i < n; ++i) {
      Mbarrier &b = c.bars[(first + i) % n];
      if (!b.waiting.empty() && try_finish(b)) return true;
    }
  }
  if (pollers_.empty()) return false;
  if (++idle_polls_ > 20000) {
    fail(DW_HOST_LIVELOCK,
         "Livelock: " + who(pollers_[0]->id) + text(" and %zu more threads poll; nothing else can run.", pollers_.size() - 1));
  }
  for (Thread *t : pollers_) {
    t->wait = Wait::kNone;
    wake(*t->warp, 1u << t->lane);
  }
  pollers_.clear();
  return true;
}

// A random order has moods, each for a while: warps by fixed random ranks, which lets one role run far ahead of another, or any
// warp that can run; copies that complete early, late, or either.
void Runner::change_mood() {
  for (u32 i = n_warps_; i > 1; --i) std::swap(by_rank_[i - 1], by_rank_[(random() >> 11) % i]);
  std::fill(ready_.begin(), ready_.end(), 0);
  for (u32 i = 0; i < n_warps_; ++i) {
    by_rank_[i]->rank = i;
    if (by_rank_[i]->ready) set_ready(*by_rank_[i]);
  }
  any_rank_ = (random() >> 11) % 4 == 0;
  copies_late_ = (random() >> 11) % 3;
  mood_left_ = 64u << (random() >> 11) % 9;
}

// The one of lowest rank among those that can run.
Warp *Runner::next_warp() {
  if (is_random() && mood_left_-- == 0) change_mood();
  u32 words = ready_.size();
  for (;;) {
    u32 start = any_rank_ ? random() % words : 0;
    for (u32 i = 0; i < words; ++i) {
      u32 word = (start + i) % words;
      while (u64 set = ready_[word]) {
        u32 turn = any_rank_ ? random() & 63 : 0;
        u64 turned = turn ? set >> turn | set << (64 - turn) : set;
        u32 bit = (__builtin_ctzll(turned) + turn) & 63;
        Warp *w = by_rank_[word * 64 + bit];
        if (w->ready) return w;
        ready_[word] &= ~(1ull << bit);
      }
    }
    if (!idle()) deadlock();
  }
}

// Enters the next fiber. The caller has said whether it can run itself (its bit in ready).
void Runner::switch_away(bool dying) {
  Thread *from = me_;
  Warp *w = from->warp;
  if (!w->ready || (is_random() && (random() & 15) == 0)) w = next_warp();
  u32 lane;
  if (launch_.order == DW_HOST_REVERSE) {
    lane = 31 - __builtin_clz(w->ready);
  } else if (is_random()) {
    u32 turn = random() & 31;
    u32 turned = turn ? w->ready >> turn | w->ready << (32 - turn) : w->ready;
    lane = (__builtin_ctz(turned) + turn) & 31;
  } else {
    lane = __builtin_ctz(w->ready);
  }
  Thread *to = &w->threads[lane];
  if (to == from) return;
  me_ = to;
  jump(from->context, to->context, dying);
}

// What every function of the table does first.
inline void Runner::call(Fn fn, bool may_switch) {
  if (++calls_ > max_calls_) fail(DW_HOST_LIVELOCK, me(fn) + text(": the cluster made more than %llu calls.", max_calls_));
  if (may_switch && is_random() && (random() & 63) == 0) {
    Thread *t = me_;
    Warp *w = next_warp();
    u32 lane = __builtin_ctz(w->ready);
    if (&w->threads[lane] == t) return;
    me_ = &w->threads[lane];
    jump(t->context, me_->context, false);
  }
}

// Lets all others run first.
void Runner::poll() {
  me_->wait = Wait::kPoll;
  me_->warp->ready &= ~(1u << me_->lane);
  pollers_.push_back(me_);
  switch_away();
}

// Comes back true in the last lane to arrive, which then does the work for all and calls release() or blocks the warp, and
// false in the others after that.
bool Runner::collective(Fn fn) {
  Thread &t = *me_;
  Warp &w = *t.warp;
  if (w.live != kAll) {
    fail(DW_HOST_DIVERGED, me(fn) + text(": lanes %08x of the warp have already left the kernel.", ~w.live));
  }
  if (!w.at) {
    w.fn = fn;
  } else if (w.fn != fn) {
    fail(DW_HOST_DIVERGED, me(fn) + text(": lanes %08x of the warp wait in %s.", w.at, kNames[w.fn]));
  }
  w.at |= 1u << t.lane;
  if (w.at == kAll) {
    w.at = 0;
    w.ready = 0;
    ++report_.collectives;
    if (w.checkpoint_due) {
      w.checkpoint_due = false;
      w.checkpoints.push_back(level(w));
    }
    return true;
  }
  t.wait = Wait::kCollective;
  w.ready &= ~(1u << t.lane);
  switch_away();
  return false;
}

// Makes the warp run again after a collective, and lets the order decide who is next.
void Runner::release(Warp &w) {
  for (u32 l = 0; l < 32; ++l) w.threads[l].wait = Wait::kNone;
  w.wait = WarpWait::kNone;
  idle_polls_ = 0;
  wake(w, kAll);
}

// ---- knowledge ------------------------------------------------------------------------------------------------
// t.know := make(t.know), remembered for the next lane that asks the same.
template <class Make> void Runner::learn(Thread &t, Know *tag, Make make) {
  Warp &w = *t.warp;
  if (w.memo_a != t.know || w.memo_b != tag) {
    Know *out = make(t.know);
    keep(w.memo_a, t.know);  // kept, so that the address is not used again
    keep(w.memo_b, tag);
    keep(w.memo_out, out);
    knows_.drop(out);
  }
  keep(t.know, w.memo_out);
}

void Runner::acquire(Thread &t, Know *k) {
  if (!k || k == t.know) return;
  learn(t, k, [&](const Know *old) {
    Know *out = knows_.copy(old);
    knows_.absorb(out, k);
    return out;
  });
}

// What t did so far goes into acc; what it does from now on has a higher clock.
void Runner::publish(Thread &t, Know *acc, Know *&last, bool relaxed) {
  if (relaxed) {
    knows_.absorb_reads(acc, t.know);
    knows_.r(acc)[t.id] = t.own++;
    return;
  }
  if (last != t.know) {
    knows_.absorb(acc, t.know);
    keep(last, t.know);
  }
  acc->v[t.id] = t.own;
  if (acc->has_r) knows_.r(acc)[t.id] = t.own;
  if (t.own_fenced) {
    knows_.use_f(acc);
    knows_.f(acc)[t.id] = t.own_fenced;
  }
  ++t.own;
}

// All lanes of w know acc, which holds all they knew. Equal clocks let their reads share a record.
void Runner::share(Warp &w, Know *acc) {
  level(w);
  for (u32 l = 0; l < 32; ++l) keep(w.threads[l].know, acc);
}

// Gives all lanes the highest of their clocks.
s32 Runner::level(Warp &w) {
  s32 own = 0;
  for (u32 l = 0; l < 32; ++l) own = std::max(own, w.threads[l].own);
  for (u32 l = 0; l < 32; ++l) w.threads[l].own = own;
  return own;
}

u32 Runner::unseen_readers(const Thread &t, const ReadRecord &r) const {
  const s32 *seen = knows_.reads(t.know) + r.warp * 32;
  u32 lanes = r.lanes;
  if (r.warp == t.warp->index) lanes &= ~(1u << t.lane);
  u32 unseen = 0;
  for (u32 left = lanes; left; left &= left - 1) {
    u32 l = __builtin_ctz(left);
    if (r.clock > seen[l]) unseen |= 1u << l;
  }
  return unseen;
}

// ---- shared memory --------------------------------------------------------------------------------------------
inline u32 halves(u32 at, u32 n) { return ((1u << (n / 2)) - 1) << (at % 16 / 2); }

Runner::Place Runner::locate(Fn fn, const Thread &t, u32 a, u32 n, u32 align, bool cluster) {
  Cta *c = t.warp->cta;
  u32 at = a;
  if (cluster && a >> kRankShift && a >> kRankShift <= ctas_) {
    c = &cta_[(a >> kRankShift) - 1];
    at = a & ((1u << kRankShift) - 1);
  }
  at -= kWindow;
  if (at % align) {
    fail(DW_HOST_MISALIGNED, text("%s by %s at shared address 0x%x (byte %d), which is not a multiple of %u.", kNames[fn],
                                  who(t.id).c_str(), a, (s32)at, align));
  }
  if (at >= c->size || n > c->size - at) {
    const char *why = !cluster && a >> kRankShift ? " A mapped address needs a cluster function." : "";
    fail(DW_HOST_OUT_OF_BOUNDS, text("%s by %s of %u bytes at shared address 0x%x (byte %d): the CTA has %u bytes.%s",
                                     kNames[fn], who(t.id).c_str(), n, a, (s32)at, c->size, why));
  }
  if (c != t.warp->cta) outside(fn, t, *c);
  return {c, at};
}

// An access to a peer's shared memory: the peer has to be known to have started, and is held to stay (fiber_end).
void Runner::outside(Fn fn, const Thread &t, Cta &c) {
  const s32 *seen = knows_.reads(t.know) + c.rank * block_threads_;
  bool started = false;
  for (u32 i = 0; i < block_threads_ && !started; ++i) started = seen[i] > 0;
  if (!started) {
    fail(DW_HOST_CLUSTER, text("%s by %s: CTA rank %u may not have started; a cluster barrier must come first.", kNames[fn],
                               who(t.id).c_str(), c.rank));
  }
  if (c.ended) fail(DW_HOST_CLUSTER, text("%s by %s: CTA rank %u has ended.", kNames[fn], who(t.id).c_str(), c.rank));
  c.touched[t.id] = t.own;
}

void Runner::no_flight(Fn fn, const Thread &t, Cta &c, u32 at, u32 mask) {
  Line &line = c.lines[at / 16];
  if (line.barrier & mask) {
    fail(DW_HOST_MBARRIER, text("%s by %s touches the mbarrier in the 16 bytes at %s.", kNames[fn], who(t.id).c_str(),
                                cell(c, at & ~15u).c_str()));
  }
  if (!(line.flight & mask)) return;
  u32 first = (at & ~15u) + 2 * __builtin_ctz(line.flight & mask);
  std::string copy = "a copy", need = "a wait";
  auto match = [&](const Copy &f) { return f.cta == &c && first >= f.at && first < f.at + f.size; };
  for (Thread &o : threads_) {
    for (Copy &f : o.copies) {
      if (match(f)) {
        copy = std::string(kNames[f.fn]) + " by " + who(f.issuer);
        need = "its cp_async_wait_group or cp_async_wait_all";
      }
    }
  }
  for (Cta &o : cta_) {
    for (Mbarrier &b : o.bars) {
      for (Copy &f : b.flights) {
        if (match(f)) {
          copy = std::string(kNames[f.fn]) + " by " + who(f.issuer);
          need = "a wait on the mbarrier at " + cell(o, b.at) + ", whose " + bar_state(b);
        }
      }
    }
  }
  fail(DW_HOST_IN_FLIGHT, std::string(kNames[fn]) + " by " + who(t.id) + " touches " + cell(c, first) + " while " + copy +
                            " is under way; it is complete only after " + need + ".");
}

inline void Runner::check_read(Fn fn, Thread &t, Cta &c, u32 at, u32 mask) {
  Line &line = c.lines[at / 16];
  // The common case: all one write that we have seen, and we are the only reader since.
  if ((line.valid & mask) == mask && !(line.flight | line.barrier) && line.n_writes == 1 && sees_write(t, line.w[0]) &&
      line.n_reads <= 1) {
    ReadRecord &r = line.r[0];
    if (!line.n_reads || (r.lanes == 1u << t.lane && r.warp == t.warp->index && !(r.mask & ~mask))) {
      line.n_reads = 1;
      r = {t.own, 1u << t.lane, (u16)t.warp->index, (u8)mask, (u8)fn};
      return;
    }
  }
  check_read_slow(fn, t, c, at, mask);
}

void Runner::check_read_slow(Fn fn, Thread &t, Cta &c, u32 at, u32 mask) {
  Line &line = c.lines[at / 16];
  no_flight(fn, t, c, at, mask);
  if ((line.valid & mask) != mask) {
    u32 first = (at & ~15u) + 2 * __builtin_ctz(mask & ~line.valid);
    fail(DW_HOST_UNWRITTEN,
         std::string(kNames[fn]) + " by " + who(t.id) + " reads " + cell(c, first) + ", which nobody wrote.");
  }
  for (u32 i = 0; i < line.n_writes; ++i) {
    const WriteRecord &w = line.w[i];
    if ((w.mask & mask) && !sees_write(t, w)) {
      fail(DW_HOST_RACE, std::string(kNames[fn]) + " by " + who(t.id) + " reads " +
                           cell(c, (at & ~15u) + 2 * __builtin_ctz(w.mask & mask)) + ", which " + kNames[w.fn] + " by " +
                           who(w.writer) + " wrote; nothing orders the two.");
    }
  }
  put_read(line, t, mask, fn);
}

void Runner::put_read(Line &line, Thread &t, u32 mask, Fn fn) {
  u32 warp = t.warp->index, bit = 1u << t.lane;
  bool prune = line.n_reads >= 3;
  u32 kept = 0;
  bool merged = false;
  for (u32 i = 0; i < line.n_reads; ++i) {
    ReadRecord &r = line.read(i);
    if (!(r.mask & ~mask)) {  // what this read says more about may go: our own older read, and those that we have seen
      if (r.warp == warp && r.clock == t.own && r.mask == mask && r.fn == fn) {
        r.lanes |= bit;
        merged = true;
      } else if (prune) {
        r.lanes = unseen_readers(t, r);
      } else if (r.warp == warp) {
        r.lanes &= ~bit;
      }
      if (!r.lanes) continue;
    }
    if (kept != i) line.read(kept) = r;
    ++kept;
  }
  line.n_reads = kept;
  if (merged) return;
  ReadRecord fresh = {t.own, bit, (u16)warp, (u8)mask, (u8)fn};
  if (kept < 3) {
    line.r[kept] = fresh;
  } else {
    if (!line.more) line.more = new std::vector<ReadRecord>;
    line.more->resize(kept - 3 + 1);
    (*line.more)[kept - 3] = fresh;
  }
  ++line.n_reads;
}

void Runner::check_write(Fn fn, Thread &t, Cta &c, u32 at, u32 mask) {
  Line &line = c.lines[at / 16];
  if ((line.flight | line.barrier) & mask) no_flight(fn, t, c, at, mask);
  for (u32 i = 0; i < line.n_writes; ++i) {
    const WriteRecord &w = line.w[i];
    // A copy that someone waited for is over, however that news came.
    bool over = w.writer >= n_threads_ && w.clock <= knows_.reads(t.know)[w.writer];
    if ((w.mask & mask) && !over && !sees_write(t, w)) {
      fail(DW_HOST_RACE, std::string(kNames[fn]) + " by " + who(t.id) + " writes " +
                           cell(c, (at & ~15u) + 2 * __builtin_ctz(w.mask & mask)) + ", which " + kNames[w.fn] + " by " +
                           who(w.writer) + " wrote; nothing orders the two.");
    }
  }
  u32 kept = 0;
  for (u32 i = 0; i < line.n_reads; ++i) {
    ReadRecord &r = line.read(i);
    if (r.mask & mask) {
      if (u32 unseen = unseen_readers(t, r)) {
        fail(DW_HOST_RACE, std::string(kNames[fn]) + " by " + who(t.id) + " writes " +
                             cell(c, (at & ~15u) + 2 * __builtin_ctz(r.mask & mask)) + ", which " + kNames[r.fn] + " by " +
                             who(r.warp * 32 + __builtin_ctz(unseen)) + " reads; nothing orders the two.");
      }
      r.mask &= ~mask;
      if (!r.mask) continue;
    }
    if (kept != i) line.read(kept) = r;
    ++kept;
  }
  line.n_reads = kept;
}

void Runner::put_write(Line &line, u32 mask, u32 writer, s32 clock, Fn fn) {
  WriteRecord fresh = {clock, (u16)writer, (u8)mask, (u8)fn};
  u32 kept = 0;
  for (u32 i = 0; i < line.n_writes; ++i) {
    WriteRecord w = line.w[i];
    w.mask &= ~mask;
    if (!w.mask) continue;
    if (w.writer == writer && w.clock == clock && w.fn == fn) {
      fresh.mask |= w.mask;
      continue;
    }
    line.w[kept++] = w;
  }
  line.w[kept++] = fresh;
  line.n_writes = kept;
  line.valid |= mask;
}

void Runner::load(Fn fn, u32 a, void *to, u32 n) {
  call(fn, true);
  ++report_.shared_accesses;
  bool cluster = fn == DW_HOST_FN_ld_cluster_v4 || fn == DW_HOST_FN_ld_cluster_f32;
  Place p = locate(fn, *me_, a, n, n, cluster);
  check_read(fn, *me_, *p.cta, p.at, halves(p.at, n));
  memcpy(to, p.cta->data + p.at, n);
}

void Runner::store(Fn fn, u32 a, const void *from, u32 n) {
  call(fn, true);
  ++report_.shared_accesses;
  Place p = locate(fn, *me_, a, n, n, false);
  u32 mask = halves(p.at, n);
  check_write(fn, *me_, *p.cta, p.at, mask);
  put_write(p.cta->lines[p.at / 16], mask, me_->id, me_->own, fn);
  memcpy(p.cta->data + p.at, from, n);
}

// ---- lanes and matrices ---------------------------------------------------------------------------------------
// Row l / 4, columns 2 (l % 4) and the next: the lane and register that hold element (row, column).
inline u32 element(const u32 *v, u32 row, u32 column) { return v[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff; }

u32 Runner::lanes(Fn fn, u32 v, u32 arg) {
  call(fn, false);
  Warp &w = *me_->warp;
  u32 lane = me_->lane;
  w.arg[lane] = v;
  w.arg2[lane] = arg;
  if (!collective(fn)) return w.out[lane];
  u32 ballot = 0;
  for (u32 l = 0; l < 32; ++l) ballot |= (u32)(w.arg[l] != 0) << l;
  switch (fn) {
    case DW_HOST_FN_sync_warp: {
      Know *acc = knows_.copy(w.threads[0].know);
      Know *last = nullptr;
      keep(last, w.threads[0].know);
      for (u32 l = 0; l < 32; ++l) publish(w.threads[l], acc, last);
      share(w, acc);
      knows_.drop(last);
      knows_.drop(acc);
      break;
    }
    case DW_HOST_FN_shuffle:
      for (u32 l = 0; l < 32; ++l) w.out[l] = w.arg[w.arg2[l] & 31];
      break;
    case DW_HOST_FN_shuffle_xor:
      for (u32 l = 0; l < 32; ++l) w.out[l] = w.arg[(l ^ w.arg2[l]) & 31];
      break;
    case DW_HOST_FN_shuffle_up:
      for (u32 l = 0; l < 32; ++l) w.out[l] = w.arg[(w.arg2[l] & 31) > l ? l : l - (w.arg2[l] & 31)];
      break;
    case DW_HOST_FN_elect_one:  // which lane it is nobody may rely on
      for (u32 l = 0; l < 32; ++l) w.out[l] = l == 13;
      break;
    case DW_HOST_FN_vote_any:
      for (u32 l = 0; l < 32; ++l) w.out[l] = ballot != 0;
      break;
    case DW_HOST_FN_vote_ballot:
      for (u32 l = 0; l < 32; ++l) w.out[l] = ballot;
      break;
    default:  // movmatrix_trans
      for (u32 l = 0; l < 32; ++l) {
        u32 row = l / 4, column = l % 4 * 2;
        w.out[l] = element(w.arg, column, row) | element(w.arg, column + 1, row) << 16;
      }
  }
  u32 result = w.out[lane];
  release(w);
  switch_away();
  return fn == DW_HOST_FN_sync_warp ? 0 : result;
}

void Runner::matrix(Fn fn, u32 a, u32 *r) {
  call(fn, true);
  Warp &w = *me_->warp;
  w.arg[me_->lane] = a;
  w.r[me_->lane] = r;
  if (!collective(fn)) return;
  bool store = fn == DW_HOST_FN_stmatrix_x4 || fn == DW_HOST_FN_stmatrix_x4_trans;
  bool trans = fn == DW_HOST_FN_ldmatrix_x4_trans || fn == DW_HOST_FN_ldmatrix_x2_trans || fn == DW_HOST_FN_stmatrix_x4_trans;
  u32 matrices = fn == DW_HOST_FN_ldmatrix_x2 || fn == DW_HOST_FN_ldmatrix_x2_trans ? 2 : 4;
  report_.shared_accesses += matrices * 8;
  Place places[32];
  for (u32 l = 0; l < matrices * 8; ++l) places[l] = locate(fn, w.threads[l], w.arg[l], 16, 16, false);
  for (u32 m = 0; m < matrices; ++m) {
    u8 *rows[8];
    for (u32 i = 0; i < 8; ++i) {
      Thread &t = w.threads[m * 8 + i];
      const Place &p = places[t.lane];
      if (store) {
        check_write(fn, t, *p.cta, p.at, 0xff);
        put_write(p.cta->lines[p.at / 16], 0xff, t.id, t.own, fn);
      } else {
        check_read(fn, t, *p.cta, p.at, 0xff);
      }
      rows[i] = p.cta->data + p.at;
    }
    for (u32 l = 0; l < 32; ++l) {
      u32 row = l / 4, column = l % 4 * 2;
      u16 pair[2];
      u8 *at[2] = {trans ? rows[column] + row * 2 : rows[row] + column * 2,
                   trans ? rows[column + 1] + row * 2 : rows[row] + column * 2 + 2};
      if (store) {
        memcpy(pair, &w.r[l][m], 4);
        memcpy(at[0], &pair[0], 2);
        memcpy(at[1], &pair[1], 2);
      } else {
        memcpy(&pair[0], at[0], 2);
        memcpy(&pair[1], at[1], 2);
        memcpy(&w.r[l][m], pair, 4);
      }
    }
  }
  release(w);
  switch_away();
}

inline float bf16(u32 x) {
  x <<= 16;
  float f;
  memcpy(&f, &x, 4);
  return f;
}
inline float f16(u32 x) {
  u32 sign = (x & 0x8000u) << 16, m = x & 0x7fffu, bits;
  if (m >= 0x7c00) {
    bits = 0x7f800000 | (m & 0x3ff) << 13;
  } else if (m >= 0x400) {
    bits = (m << 13) + 0x38000000;
  } else {
    float f = (float)m * 0x1p-24f;
    memcpy(&bits, &f, 4);
  }
  bits |= sign;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

inline float e4m3(u32 x) {
  u32 exponent = x >> 3 & 15, mantissa = x & 7;
  float f = exponent ? (float)(8 + mantissa) * 0x1p-10f * (float)(1u << exponent) : (float)mantissa * 0x1p-9f;
  if ((x & 0x7f) == 0x7f) f = __builtin_nanf("");
  return x & 0x80 ? -f : f;
}

// To the nearest fp16, ties to even.
inline float to_f16(float x) {
  float size = x < 0 ? -x : x;
  if (size >= 65520) return x * __builtin_inff();
  float unit = size < 0x1p-14f ? 0x1p-24f : 0;
  if (!unit) {
    u32 bits;
    memcpy(&bits, &size, 4);
    bits = (bits & 0x7f800000) - (10u << 23);
    memcpy(&unit, &bits, 4);
  }
  return __builtin_rintf(x / unit) * unit;  // NaN: as it is
}

// Products are exact in fp32 and are added one by one, k ascending; HALF: the sum is held in fp16 after eight of them. (What tensor cores
// hold in between is not documented; they are no worse than that.) `a` and `b` are filled, K columns and rows.
typedef float Row __attribute__((vector_size(32)));
template <u32 K, bool HALF = false> void accumulate(Warp &w, const float (&a)[16][K], const float (&bs)[K][8]) {
  Row b[K];
  memcpy(b, bs, sizeof b);
  for (u32 row = 0; row < 16; ++row) {
    float d[8];
    float *const *lane = w.d + row % 8 * 4;
    u32 i = row / 8 * 2;
    for (u32 l = 0; l < 4; ++l) memcpy(d + 2 * l, lane[l] + i, 8);
    Row sum;
    memcpy(&sum, d, sizeof sum);
    for (u32 k = 0; k < K; ++k) {
      sum += a[row][k] * b[k];
      if (HALF && k % 8 == 7)
        for (u32 n = 0; n < 8; ++n) sum[n] = to_f16(sum[n]);
    }
    memcpy(d, &sum, sizeof sum);
    for (u32 l = 0; l < 4; ++l) memcpy(lane[l] + i, d + 2 * l, 8);
  }
}
template <u32 K> void multiply_e4m3(Warp &w) {
  float a[16][K], b[K][8];
  for (u32 l = 0; l < 32; ++l)
    for (u32 byte = 0; byte < 4; ++byte) {
      u32 g = l / 4, c = l % 4 * 4 + byte;
      for (u32 i = 0; i < K / 16; ++i) b[i * 16 + c][g] = e4m3(w.b[l][i] >> 8 * byte & 0xff);
      for (u32 i = 0; i < K / 8; ++i) a[g + i % 2 * 8][c + i / 2 * 16] = e4m3(w.a[l][i] >> 8 * byte & 0xff);
    }
  accumulate<K>(w, a, b);
}
template <float (*Value)(u32), bool HALF = false> void multiply(Warp &w) {
  float bs[16][8], a[16][16];
  for (u32 l = 0; l < 32; ++l) {
    u32 g = l / 4, c = l % 4 * 2;
    for (u32 i = 0; i < 2; ++i) {
      bs[i * 8 + c][g] = Value(w.b[l][i] & 0xffff);
      bs[i * 8 + c + 1][g] = Value(w.b[l][i] >> 16);
    }
    for (u32 i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][c + i / 2 * 8] = Value(w.a[l][i] & 0xffff);
      a[g + i % 2 * 8][c + 1 + i / 2 * 8] = Value(w.a[l][i] >> 16);
    }
  }
  accumulate<16, HALF>(w, a, bs);
}

void Runner::mma(Fn fn, float *d, const u32 *a, const u32 *b) {
  call(fn, false);
  Warp &w = *me_->warp;
  u32 lane = me_->lane;
  w.d[lane] = d;
  w.a[lane] = a;
  w.b[lane] = b;
  if (!collective(fn)) return;
  ++report_.mmas;
  if (fn == DW_HOST_FN_mma_m16n8k16_bf16) {
    multiply<bf16>(w);
  } else if (fn == DW_HOST_FN_mma_m16n8k32_e4m3) {
    multiply_e4m3<32>(w);
  } else if (fn == DW_HOST_FN_mma_m16n8k16_e4m3) {
    multiply_e4m3<16>(w);
  } else if (fn == DW_HOST_FN_mma_m16n8k16_f16_f16) {
    multiply<f16, true>(w);
  } else {
    multiply<f16>(w);
  }
  release(w);
  switch_away();
}

// ---- global memory --------------------------------------------------------------------------------------------
void Runner::check_bytes(Fn fn, const void *p, u64 n, bool write, bool nc) {
  if (buffers_.empty()) return;
  const u8 *at = (const u8 *)p;
  auto next = std::upper_bound(buffers_.begin(), buffers_.end(), at,
                               [](const u8 *x, const dw_host_buffer &b) { return x < (const u8 *)b.data; });
  const dw_host_buffer *b = next == buffers_.begin() ? nullptr : &next[-1];
  if (!b || (u64)(at - (const u8 *)b->data) + n > b->size) {
    fail(DW_HOST_GLOBAL, me(fn) + text(" of %llu bytes at %p is not inside one of the launch's buffers.", n, p));
  }
  if (write && !(b->flags & DW_HOST_BUFFER_WRITE)) {
    fail(DW_HOST_GLOBAL, me(fn) + text(" at %p writes a buffer that the launch gives to read only.", p));
  }
  if (nc && (b->flags & DW_HOST_BUFFER_WRITE)) {
    fail(DW_HOST_GLOBAL, me(fn) + text(" at %p: a read-only load of a buffer that this launch may write.", p));
  }
  if (launch_.dependent && (b->flags & DW_HOST_BUFFER_PREVIOUS_GRID) && !me_->know->v[n_threads_]) {
    fail(DW_HOST_DEPENDENCY, me(fn) + text(" at %p: the previous grid may still be at work on it; grid_dependency_wait must "
                                           "come first.",
                                           p));
  }
}

void Runner::global(Fn fn, const void *p, u32 n) {
  call(fn, true);
  if ((size_t)p % n) fail(DW_HOST_MISALIGNED, me(fn) + text(" at %p, which is not a multiple of %u.", p, n));
  bool write =
    fn == DW_HOST_FN_stg_cg_v4 || fn == DW_HOST_FN_stg_cg_v2 || fn == DW_HOST_FN_stg_cg_f32 || fn == DW_HOST_FN_atomic_add_u32;
  bool nc = fn == DW_HOST_FN_ldg_nc_s32 || fn == DW_HOST_FN_ldg_nc_s64 || fn == DW_HOST_FN_ldg_nc_u32 ||
            fn == DW_HOST_FN_ldg_nc_u8 || fn == DW_HOST_FN_ldg_nc_v2 || fn == DW_HOST_FN_ldg_nc_v4;
  check_bytes(fn, p, n, write, nc);
  // A thread that spins on memory lets the others run now and then.
  if (!nc && ++me_->polls % 4096 == 0) poll();
}

void Runner::grid(Fn fn) {
  call(fn, true);
  if (fn == DW_HOST_FN_grid_dependents_launch) return;
  learn(*me_, &grid_tag_, [&](const Know *old) {
    Know *out = knows_.copy(old);
    out->v[n_threads_] = 1;
    if (out->has_r) knows_.r(out)[n_threads_] = 1;
    return out;
  });
}

// ---- copies ---------------------------------------------------------------------------------------------------
// Checks the destination as a write by t now, and closes it to everyone until delivery.
void Runner::take_off(Fn fn, Thread &t, Copy &copy) {
  copy.fn = fn;
  copy.issuer = t.id;
  for (u32 at = copy.at; at < copy.at + copy.size;) {
    u32 n = std::min(16 - at % 16, copy.at + copy.size - at), mask = halves(at, n);
    Line &line = copy.cta->lines[at / 16];
    check_write(fn, t, *copy.cta, at, mask);
    if (fn == DW_HOST_FN_bulk_load) {
      for (u32 i = 0; i < line.n_writes; ++i) {
        const WriteRecord &w = line.w[i];
        if (!(w.mask & mask) || w.writer >= n_threads_) continue;
        s32 fenced = w.writer == t.id ? t.own_fenced : 0;
        if (t.know->has_f) fenced = std::max(fenced, knows_.f(t.know)[w.writer]);
        if (w.clock > fenced) {
          fail(DW_HOST_FENCE, me(fn) + " overwrites " + cell(*copy.cta, at) + ", which " + kNames[w.fn] + " by " +
                                who(w.writer) + " wrote, with no fence_proxy_async between the two.");
        }
      }
    }
    line.flight |= mask;
    line.valid &= ~mask;
    at += n;
  }
}

void Runner::deliver(const Copy &copy, u32 writer, s32 clock) {
  u8 *to = copy.cta->data + copy.at;
  if (copy.source) {
    memcpy(to, copy.source, copy.source_size);
    memset(to + copy.source_size, 0, copy.size - copy.source_size);
  } else {
    memcpy(to, copy.value, copy.size);
  }
  for (u32 at = copy.at; at < copy.at + copy.size;) {
    u32 n = std::min(16 - at % 16, copy.at + copy.size - at), mask = halves(at, n);
    Line &line = copy.cta->lines[at / 16];
    line.flight &= ~mask;
    put_write(line, mask, writer, clock, copy.fn);
    at += n;
  }
  report_.copied_bytes += copy.size;
}

void Runner::copy(Fn fn, u32 dst, const void *src, u32 n, u32 bar) {
  call(fn, true);
  Thread &t = *me_;
  if (fn == DW_HOST_FN_bulk_load && !n) return;
  bool bulk = fn == DW_HOST_FN_bulk_load || fn == DW_HOST_FN_bulk_prefetch_l2;
  u32 align = fn == DW_HOST_FN_cp_async_4 ? 4 : 16;
  if ((size_t)src % align || (bulk && n % 16)) {
    fail(DW_HOST_MISALIGNED, me(fn) + text(" of %u bytes from %p: address and size must be multiples of %u.", n, src, align));
  }
  if (fn == DW_HOST_FN_cp_async_16_zfill && n > 16)
    fail(DW_HOST_OUT_OF_BOUNDS, me(fn) + text(" of %u bytes, more than 16.", n));
  if (n) check_bytes(fn, src, n, false, false);
  if (n && &__asan_region_is_poisoned && __asan_region_is_poisoned(const_cast<void *>(src), n)) {
    fail(DW_HOST_GLOBAL, me(fn) + text(" of %u bytes from %p: AddressSanitizer says that they may not be read.", n, src));
  }
  if (fn == DW_HOST_FN_bulk_prefetch_l2) return;
  u32 size = bulk ? n : align;
  Place p = locate(fn, t, dst, size, align, false);
  Copy c = {p.cta, p.at, size, (const u8 *)src, n, {}, fn, t.id, t.group, t.sequence};
  if (bulk) {
    Mbarrier &b = find_bar(fn, t, bar, false);
    take_off(fn, t, c);
    b.flights.push_back(c);
    b.flight_bytes += n;
    if (!b.waiting.empty() && !late()) try_finish(b);
  } else {
    take_off(fn, t, c);
    t.copies.push_back(c);
    ++t.sequence;
  }
}

void Runner::copy_group(Fn fn, u32 arg) {
  call(fn, true);
  Thread &t = *me_;
  if (fn == DW_HOST_FN_cp_async_commit) {
    ++t.group;
    return;
  }
  if (fn == DW_HOST_FN_cp_async_mbarrier_arrive) {
    Mbarrier &b = find_bar(fn, t, arg, false);
    if (b.pending <= b.deferred.size()) arrive(fn, t, b, false);  // reports too many
    t.deferred_before = t.sequence;
    t.deferred_clock = t.own;
    if (t.copies.empty()) {
      arrive(fn, t, b, false);
      return;
    }
    publish(t, arrivals(b), b.last);
    b.deferred.push_back({&t, t.sequence});
    settle(b);
    return;
  }
  bool all = fn == DW_HOST_FN_cp_async_wait_all;
  auto over = [&](u32 group) { return all || group + arg < t.group; };
  bool any = false;
  for (Copy &c : t.copies) {
    if (!over(c.group)) continue;
    // A copy that also triggers an arrival is seen through that arrival, which was published before.
    deliver(c, t.id, c.sequence < t.deferred_before ? t.deferred_clock : t.own);
    any = true;
  }
  t.copies.erase(std::remove_if(t.copies.begin(), t.copies.end(), [&](const Copy &c) { return over(c.group); }),
                 t.copies.end());
  for (size_t i = 0; i < t.by_agent.size();) {
    ByAgent g = t.by_agent[i];
    if (!over(g.group)) {
      ++i;
      continue;
    }
    t.by_agent.erase(t.by_agent.begin() + i);
    if (t.know->v[g.agent] >= g.clock) continue;
    Know *k = knows_.copy(t.know);
    k->v[g.agent] = g.clock;
    if (k->has_r) knows_.r(k)[g.agent] = std::max(knows_.r(k)[g.agent], g.clock);
    keep(t.know, k);
    knows_.drop(k);
  }
  if (!any || !t.deferred_before) return;
  u32 first = t.copies.empty() ? t.sequence : t.copies[0].sequence;
  for (Mbarrier &b : t.warp->cta->bars) {  // arrivals that waited for these copies only
    for (size_t i = 0; i < b.deferred.size();) {
      if (b.deferred[i].thread == &t && b.deferred[i].before <= first) {
        b.deferred.erase(b.deferred.begin() + i);
        --b.pending;
      } else {
        ++i;
      }
    }
    settle(b);
  }
}

void Runner::st_async(Fn fn, u32 a, const void *v, u32 n, u32 bar) {
  call(fn, true);
  Thread &t = *me_;
  Place p = locate(fn, t, a, n, n, true);
  Mbarrier &b = find_bar(fn, t, bar, true);
  if (p.cta != b.cta) {
    fail(DW_HOST_CLUSTER, me(fn) + text(": the data goes to CTA rank %u and its mbarrier is in %u.", p.cta->rank, b.cta->rank));
  }
  Copy c = {p.cta, p.at, n, nullptr, n, {}, fn, t.id, 0, 0};
  memcpy(c.value, v, n);
  take_off(fn, t, c);
  // Whoever sees it arrive knows that the issuer came as far, as with a relaxed arrival.
  publish(t, arrivals(b), b.last, true);
  b.flights.push_back(c);
  b.flight_bytes += n;
  if (!b.waiting.empty() && !late()) try_finish(b);
}

void Runner::fence(Fn fn) {
  call(fn, true);
  Thread &t = *me_;
  t.fence_time = ++time_;
  if (fn == DW_HOST_FN_fence_mbarrier_init) return;
  learn(t, &fence_tag_, [&](const Know *old) {
    Know *out = knows_.copy(old);
    knows_.fence(out);
    return out;
  });
  t.own_fenced = t.own++;
}

// ---- mbarriers ------------------------------------------------------------------------------------------------
Mbarrier &Runner::find_bar(Fn fn, Thread &t, u32 a, bool cluster) {
  Place p = locate(fn, t, a, 8, 8, cluster);
  Line &line = p.cta->lines[p.at / 16];
  Mbarrier *found = nullptr;
  if (line.barrier & halves(p.at, 8)) {
    for (Mbarrier &b : p.cta->bars) {
      if (b.at == p.at) found = &b;
    }
  }
  if (!found) fail(DW_HOST_MBARRIER, me(fn) + ": there is no initialised mbarrier at " + cell(*p.cta, p.at) + ".");
  Mbarrier &b = *found;
  // fence_mbarrier_init carries the initialisation over relaxed arrivals too.
  bool init_fence = threads_[b.init_thread].fence_time > b.init_time;
  const s32 *seen = init_fence ? knows_.reads(t.know) : t.know->v;
  if (t.id != b.init_thread && seen[b.init_thread] < b.init_clock) {
    fail(DW_HOST_RACE, me(fn) + " uses the mbarrier at " + cell(*p.cta, p.at) + ", which mbarrier_init by " +
                         who(b.init_thread) + " initialised; nothing orders the two.");
  }
  // Copies and peers see the initialisation only through a fence.
  if ((fn == DW_HOST_FN_bulk_load || p.cta != t.warp->cta) && !b.fenced) {
    b.fenced = init_fence || (t.know->has_f && knows_.f(t.know)[b.init_thread] >= b.init_clock);
    if (!b.fenced) {
      fail(DW_HOST_FENCE, me(fn) + " uses the mbarrier at " + cell(*p.cta, p.at) +
                            " with no fence_mbarrier_init or fence_proxy_async after its mbarrier_init.");
    }
  }
  return b;
}

// Who waits for a phase sees it by its parity. When the next one can complete before that, the wait can miss it: so each thread
// that waited must have said that it came through, itself or by any lane of its warp after a collective that had both.
void Runner::check_waited(Mbarrier &b, const Know *acc) {
  const s32 *seen = knows_.reads(acc);
  for (const Waited &t : b.waited) {
    const Warp &w = *threads_[t.thread].warp;
    bool known = seen[t.thread] >= t.clock;
    if (!known && t.checkpoint < w.checkpoints.size()) {
      for (u32 l = 0; l < 32; ++l) known |= seen[w.index * 32 + l] >= w.checkpoints[t.checkpoint];
    }
    if (known) continue;
    fail(DW_HOST_PHASE, text("Phase %u of the mbarrier at %s completes while %s may still be in mbarrier_wait for phase %u and "
                             "could miss it.",
                             b.phase, cell(*b.cta, b.at).c_str(), who(t.thread).c_str(), b.phase - 1));
  }
  b.waited.clear();
}

// The phase is over: everyone who waits for it may go on, knowing what its arrivals published and its copies brought.
void Runner::complete(Mbarrier &b) {
  Know *acc = arrivals(b);
  acc->v[b.agent] = b.phase + 1;
  if (acc->has_r) knows_.r(acc)[b.agent] = b.phase + 1;
  check_waited(b, acc);
  knows_.drop(b.done);
  b.done = acc;
  b.acc = nullptr;
  keep(b.last, nullptr);
  for (Thread *t : b.waiting) {
    t->wait = Wait::kNone;
    t->granted = acc;
    ++acc->refs;
    note_wait(b, *t);
    wake(*t->warp, 1u << t->lane);
  }
  b.waiting.clear();
  ++b.phase;
  b.pending = b.count;
  idle_polls_ = 0;
}

// Completes the phase if nothing is missing but copies that are under way.
bool Runner::try_finish(Mbarrier &b) {
  if (b.pending == b.deferred.size() && b.tx && (s64)b.flight_bytes > b.tx) {
    fail(DW_HOST_TX_COUNT, text("%llu bytes are under way to the mbarrier at %s, more than the %lld announced for phase %u.",
                                b.flight_bytes, cell(*b.cta, b.at).c_str(), b.tx, b.phase));
  }
  if (!can_finish(b)) return false;
  if (b.tx) {
    for (const Copy &c : b.flights) deliver(c, b.agent, b.phase + 1);
    b.flights.clear();
    b.flight_bytes = 0;
    b.tx = 0;
  }
  for (const Deferred &d : b.deferred) {
    Thread &t = *d.thread;
    size_t n = 0;
    while (n < t.copies.size() && t.copies[n].sequence < d.before) {
      deliver(t.copies[n], b.agent, b.phase + 1);
      t.by_agent.push_back({t.copies[n].group, b.agent, (s32)b.phase + 1});
      ++n;
    }
    t.copies.erase(t.copies.begin(), t.copies.begin() + n);
  }
  b.deferred.clear();
  b.pending = 0;
  complete(b);
  return true;
}

void Runner::settle(Mbarrier &b) {
  if (b.pending == 0 && b.tx == 0) {
    complete(b);
  } else if (!b.waiting.empty() && !late()) {
    try_finish(b);
  }
}

void Runner::arrive(Fn fn, Thread &t, Mbarrier &b, bool relaxed) {
  if (b.pending <= b.deferred.size()) {
    fail(DW_HOST_OVER_ARRIVAL, me(fn) + " at the mbarrier at " + cell(*b.cta, b.at) + ": " + bar_state(b) + ".");
  }
  publish(t, arrivals(b), b.last, relaxed);
  --b.pending;
  idle_polls_ = 0;
  settle(b);
}

void Runner::wait(Fn fn, Thread &t, Mbarrier &b, u32 parity) {
  if (parity > 1) fail(DW_HOST_MBARRIER, me(fn) + text(": the parity is %u; it must be 0 or 1.", parity));
  bool test = fn == DW_HOST_FN_mbarrier_test;
  auto over = [&] { return (b.phase & 1) != parity; };
  if (!over() && !late()) try_finish(b);
  if (!over() && test) {
    // "Not yet" is always a right answer; who asks again without end lets the others run.
    bool again = t.bar == &b && t.parity == b.phase;
    t.bar = &b;
    t.parity = b.phase;
    if (is_random() ? random() >> 30 & 1 : launch_.order == DW_HOST_FORWARD && !again) return;
    poll();
    if (!over()) try_finish(b);
  } else if (!over()) {
    t.wait = Wait::kMbarrier;
    t.bar = &b;
    t.parity = parity;
    t.warp->ready &= ~(1u << t.lane);
    b.waiting.push_back(&t);
    switch_away();
    acquire(t, t.granted);
    knows_.drop(t.granted);
    t.granted = nullptr;
    return;
  }
  if (!over()) return;
  if (!test && b.phase) note_wait(b, t);
  acquire(t, b.done);
}

u32 Runner::mbarrier(Fn fn, u32 a, u32 arg) {
  call(fn, true);
  Thread &t = *me_;
  if (fn == DW_HOST_FN_mbarrier_init) {
    Place p = locate(fn, t, a, 8, 8, false);
    Cta &c = *p.cta;
    u32 mask = halves(p.at, 8);
    if (c.lines[p.at / 16].barrier & mask) fail(DW_HOST_MBARRIER, me(fn) + " at " + cell(c, p.at) + ", which already is one.");
    if (!arg || arg >= 1u << 20) fail(DW_HOST_MBARRIER, me(fn) + text(": the count is %u; it must be 1 to 1048575.", arg));
    if (c.bars.size() == kAgentsPerCta) fail(DW_HOST_MBARRIER, me(fn) + text(": more than %u mbarriers.", kAgentsPerCta));
    check_write(fn, t, c, p.at, mask);
    put_write(c.lines[p.at / 16], mask, t.id, t.own, fn);
    c.lines[p.at / 16].barrier |= mask;
    c.bars.emplace_back();
    Mbarrier &b = c.bars.back();
    b.cta = &c;
    b.at = p.at;
    b.count = b.pending = arg;
    b.agent = knows_.used++;
    b.init_thread = t.id;
    b.init_clock = t.own;
    b.init_time = ++time_;
    return 0;
  }
  bool remote = fn == DW_HOST_FN_mbarrier_arrive_remote || fn == DW_HOST_FN_mbarrier_arrive_remote_relaxed;
  Mbarrier &b = find_bar(fn, t, a, remote);
  if (fn == DW_HOST_FN_mbarrier_wait) {
    wait(fn, t, b, arg);
    return 0;
  }
  if (fn == DW_HOST_FN_mbarrier_test) {
    wait(fn, t, b, arg);
    return (b.phase & 1) != arg;
  }
  if (fn == DW_HOST_FN_mbarrier_arrive_expect && b.pending > b.deferred.size()) {
    b.tx += arg;
    if (b.tx >= 1 << 20) fail(DW_HOST_TX_COUNT, me(fn) + text(": %lld bytes announced; an mbarrier counts to 1048575.", b.tx));
  }
  arrive(fn, t, b, fn == DW_HOST_FN_mbarrier_arrive_remote_relaxed);
  return 0;
}

// ---- named barriers, registers, clusters ----------------------------------------------------------------------
void Runner::barrier(Fn fn, u32 id, u32 n) {
  call(fn, false);
  Thread &t = *me_;
  Warp &w = *t.warp;
  Cta &c = *w.cta;
  if (id > 15) fail(DW_HOST_NAMED_BARRIER, me(fn) + text(": there is no barrier %u, only 0 to 15.", id));
  if (!n || n % 32 || n > block_threads_) {
    fail(DW_HOST_NAMED_BARRIER,
         me(fn) + text(": %u threads at barrier %u; it must be a multiple of 32 up to %u.", n, id, block_threads_));
  }
  if (w.at && w.fn == fn && (w.wait_arg[0] != id || w.wait_arg[1] != n)) {
    fail(DW_HOST_DIVERGED,
         me(fn) + text("(%u, %u): other lanes of the warp say (%u, %u).", id, n, w.wait_arg[0], w.wait_arg[1]));
  }
  w.wait_arg[0] = id;
  w.wait_arg[1] = n;
  if (!collective(fn)) return;
  Named &b = c.named[id];
  u32 bit = 1u << (w.index % warps_per_cta_);
  if (b.arrived && b.expected != n) {
    fail(DW_HOST_NAMED_BARRIER, me(fn) + text(": %u threads at barrier %u, where others said %u.", n, id, b.expected));
  }
  if (b.warps & bit) fail(DW_HOST_NAMED_BARRIER, me(fn) + text(": the warp has already arrived at barrier %u.", id));
  if (!b.arrived) {
    b.acc = knows_.copy(t.know);
    keep(b.last, t.know);
    b.expected = n;
  }
  for (u32 l = 0; l < 32; ++l) publish(w.threads[l], b.acc, b.last);
  b.arrived += 32;
  b.warps |= bit;
  if (fn == DW_HOST_FN_barrier_sync) {
    b.waiting |= bit;
    w.wait = WarpWait::kNamed;
  } else {
    release(w);
  }
  if (b.arrived == b.expected) {
    for (u32 left = b.waiting; left; left &= left - 1) {
      Warp &o = c.warps[__builtin_ctz(left)];
      share(o, b.acc);
      release(o);
    }
    knows_.drop(b.acc);
    knows_.drop(b.last);
    b = Named{};
  }
  switch_away();
}

void Runner::registers(Fn fn, u32 n) {
  call(fn, false);
  Thread &t = *me_;
  Warp &w = *t.warp;
  Cta &c = *w.cta;
  if (n % 8 || n < 24 || n > 256) {
    fail(DW_HOST_REGISTERS, me(fn) + text(": %u registers; it must be a multiple of 8 from 24 to 256.", n));
  }
  if (w.at && w.fn == fn && w.wait_arg[0] != n)
    fail(DW_HOST_DIVERGED, me(fn) + text("<%u>: other lanes of the warp say %u.", n, w.wait_arg[0]));
  w.wait_arg[0] = n;
  if (!collective(fn)) return;
  bool inc = fn == DW_HOST_FN_registers_inc;
  if (inc ? n < w.registers : n > w.registers) {
    fail(DW_HOST_REGISTERS, me(fn) + text("<%u>: the warp has %u registers a thread.", n, w.registers));
  }
  u32 index = w.index % warps_per_cta_, members = std::min(4u, warps_per_cta_ - index / 4 * 4);
  Group &g = c.groups[index / 4];
  if (g.seen && (g.n != n || g.fn != fn)) {
    fail(DW_HOST_REGISTERS, me(fn) + text("<%u>: another warp of its warpgroup asked %s<%u>.", n, kNames[g.fn], g.n));
  }
  g.fn = fn;
  g.n = n;
  g.seen = (g.seen + 1) % members;
  if (!inc) {
    c.pool += (w.registers - n) * 32;
    w.registers = n;
    release(w);
  } else {
    w.wait = WarpWait::kRegisters;
  }
  // Whoever waits for registers takes them as they come.
  for (u32 i = 0; i < warps_per_cta_; ++i) {
    Warp &o = c.warps[i];
    if (o.wait != WarpWait::kRegisters) continue;
    u32 more = (o.wait_arg[0] - o.registers) * 32;
    if (more > c.pool) continue;
    c.pool -= more;
    o.registers = o.wait_arg[0];
    release(o);
  }
  switch_away();
}

void Runner::settle_cluster() {
  for (Warp &w : warps_) {
    if (w.live && !w.cluster_pending) return;
  }
  if (!cluster_acc_) return;
  for (Warp &w : warps_) {
    if (!w.live) continue;
    w.cluster_pending = false;
    w.cluster_granted = cluster_acc_;
    ++cluster_acc_->refs;
    if (w.wait == WarpWait::kCluster) {
      for (u32 l = 0; l < 32; ++l) acquire(w.threads[l], w.cluster_granted);
      knows_.drop(w.cluster_granted);
      w.cluster_granted = nullptr;
      release(w);
    }
  }
  knows_.drop(cluster_acc_);
  cluster_acc_ = nullptr;
  keep(cluster_last_, nullptr);
}

u32 Runner::cluster(Fn fn, u32 a, u32 rank) {
  call(fn, false);
  Thread &t = *me_;
  Warp &w = *t.warp;
  if (fn == DW_HOST_FN_cluster_map) {
    if (rank >= ctas_) fail(DW_HOST_CLUSTER, me(fn) + text(": there is no rank %u in a cluster of %u.", rank, ctas_));
    if (a >> kRankShift) fail(DW_HOST_CLUSTER, me(fn) + text(": address 0x%x is already mapped.", a));
    return (rank + 1) << kRankShift | a;
  }
  if (!collective(fn)) return 0;
  if (fn == DW_HOST_FN_cluster_wait) {
    if (w.cluster_granted) {
      for (u32 l = 0; l < 32; ++l) acquire(w.threads[l], w.cluster_granted);
      knows_.drop(w.cluster_granted);
      w.cluster_granted = nullptr;
      release(w);
    } else if (w.cluster_pending) {
      w.wait = WarpWait::kCluster;
    } else {
      fail(DW_HOST_CLUSTER, me(fn) + ": the warp has not arrived at the cluster barrier.");
    }
  } else {
    if (w.cluster_pending || w.cluster_granted) {
      fail(DW_HOST_CLUSTER, me(fn) + ": the warp arrived before and has not waited since.");
    }
    if (!cluster_acc_) cluster_acc_ = knows_.fresh();
    for (u32 l = 0; l < 32; ++l) publish(w.threads[l], cluster_acc_, cluster_last_, fn == DW_HOST_FN_cluster_arrive_relaxed);
    w.cluster_pending = true;
    ++w.cluster_phase;
    release(w);
    settle_cluster();
  }
  switch_away();
  return 0;
}

// ---- clusters of fibers ---------------------------------------------------------------------------------------
void Runner::fiber_main() {
  Runner &r = *current_runner;
  // The first fiber of a cluster comes from the main context and tells AddressSanitizer's view of its stack.
  if (&__sanitizer_finish_switch_fiber) {
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!r.main_.bottom) {
      r.main_.bottom = bottom;
      r.main_.size = size;
    }
  }
  try {
    r.launch_.entry(r.launch_.params);
    r.fiber_end();
  } catch (const Failure &) {
  } catch (const std::bad_alloc &) {
    r.out_of_memory();
  }
  r.jump(r.me_->context, r.main_, true);
  __builtin_unreachable();
}

void Runner::fiber_end() {
  Thread &t = *me_;
  Warp &w = *t.warp;
  Cta &c = *w.cta;
  t.wait = Wait::kDone;
  w.live &= ~(1u << t.lane);
  w.ready &= ~(1u << t.lane);
  if (w.at) {
    fail(DW_HOST_DIVERGED, who(t.id) + text(" leaves the kernel while lanes %08x of its warp wait in %s.", w.at, kNames[w.fn]));
  }
  if (!w.live) {
    if (--c.live_warps == 0) {
      c.ended = true;
      for (const Mbarrier &b : c.bars) {
        if (b.flights.empty()) continue;
        const Copy &f = b.flights[0];
        fail(DW_HOST_UNFINISHED, text("CTA (%u,%u,%u) ended while %s by %s to ", c.block.x, c.block.y, c.block.z, kNames[f.fn],
                                      who(f.issuer).c_str()) +
                                   cell(c, f.at) + " was under way.");
      }
      for (const Group &g : c.groups) {
        if (g.seen) {
          fail(DW_HOST_REGISTERS, text("CTA (%u,%u,%u): %s<%u> was executed by some warps of a warpgroup only.", c.block.x,
                                       c.block.y, c.block.z, kNames[g.fn], g.n));
        }
      }
      // Peers that reached into this CTA must have said so to one of its threads before it ended.
      if (ctas_ > 1) {
        Know *end = knows_.fresh();
        Know *last = nullptr;
        for (u32 i = 0; i < block_threads_; ++i) publish(c.warps[0].threads[i], end, last);
        for (u32 i = 0; i < n_threads_; ++i) {
          if (c.touched[i] > knows_.reads(end)[i]) {
            fail(DW_HOST_CLUSTER,
                 text("CTA rank %u may end while %s still reaches into its shared memory; a cluster barrier is "
                      "missing.",
                      c.rank, who(i).c_str()));
          }
        }
        knows_.drop(end);
        knows_.drop(last);
      }
    }
    settle_cluster();
  }
  if (--live_) switch_away(true);  // the last one goes back to the main context
}

void Runner::check_launch() {
  auto bad = [&](const std::string &why) { fail(DW_HOST_BAD_ARGUMENT, why); };
  auto dims = [](const unsigned *d) { return dw_host_dim{d[0] ? d[0] : 1, d[1] ? d[1] : 1, d[2] ? d[2] : 1}; };
  if (!launch_.entry) bad("The launch has no kernel.");
  grid_ = dims(launch_.grid);
  block_ = dims(launch_.block);
  cluster_ = dims(launch_.cluster);
  if (block_.x > 1024 || block_.y > 1024 || block_.z > 64) bad("A dimension of the block is too large.");
  block_threads_ = block_.x * block_.y * block_.z;
  if (block_threads_ % 32 || block_threads_ > 1024) {
    bad(text("A block of %u threads: it must be a multiple of 32 up to 1024.", block_threads_));
  }
  if ((u64)cluster_.x * cluster_.y * cluster_.z > 16) bad("A cluster has at most 16 CTAs.");
  ctas_ = cluster_.x * cluster_.y * cluster_.z;
  if (grid_.x % cluster_.x || grid_.y % cluster_.y || grid_.z % cluster_.z) bad("The cluster does not divide the grid.");
  if (launch_.shared_bytes >= (1u << kRankShift) - kWindow) bad(text("%zu bytes of shared memory.", launch_.shared_bytes));
  if ((u64)launch_.registers_per_thread * block_threads_ > kMaxRegisters) {
    fail(DW_HOST_REGISTERS, text("%u registers a thread at the start are more than 65536 for %u threads.",
                                 launch_.registers_per_thread, block_threads_));
  }
  if (launch_.order > DW_HOST_RANDOM) bad("There is no such order.");
  warps_per_cta_ = block_threads_ / 32;
  n_threads_ = ctas_ * block_threads_;
  n_warps_ = ctas_ * warps_per_cta_;
  buffers_.assign(launch_.buffers, launch_.buffers + launch_.n_buffers);
  std::sort(buffers_.begin(), buffers_.end(),
            [](const auto &a, const auto &b) { return (const u8 *)a.data < (const u8 *)b.data; });
  rng_ = launch_.seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  if (!rng_) rng_ = 1;
  max_calls_ = launch_.max_calls ? launch_.max_calls : 4000000000ull;
}

void Runner::make_stacks() {
  stack_bytes_ = launch_.stack_bytes ? launch_.stack_bytes : &__sanitizer_start_switch_fiber ? 512 << 10 : 128 << 10;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  stack_bytes_ = (std::max<size_t>(stack_bytes_, 16 << 10) + page - 1) / page * page;
  stack_stride_ = stack_bytes_ + page;
  void *p =
    mmap(nullptr, stack_stride_ * n_threads_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail(DW_HOST_SYSTEM, text("No memory for %u stacks of %zu bytes.", n_threads_, stack_bytes_));
  stacks_ = (u8 *)p;
  madvise(stacks_, stack_stride_ * n_threads_, MADV_NOHUGEPAGE);  // a few pages of each are touched
  for (u32 i = 0; i < n_threads_ && i < 8192; ++i) mprotect(stacks_ + i * stack_stride_, page, PROT_NONE);
}

void Runner::start_cluster(u64 index) {
  u64 per_row = grid_.x / cluster_.x, per_plane = per_row * (grid_.y / cluster_.y);
  dw_host_dim first = {(u32)(index % per_row) * cluster_.x, (u32)(index % per_plane / per_row) * cluster_.y,
                       (u32)(index / per_plane) * cluster_.z};
  knows_.used = n_threads_ + 1;
  Know *start = knows_.fresh();
  calls_ = idle_polls_ = 0;
  live_ = n_threads_;
  std::fill(ready_.begin(), ready_.end(), 0);
  u32 share = launch_.registers_per_thread;
  if (!share) share = std::min(255u, kMaxRegisters / block_threads_) / 8 * 8;
  for (Cta &c : cta_) {
    c.rank = &c - cta_.data();
    c.live_warps = warps_per_cta_;
    u32 x = c.rank % cluster_.x, y = c.rank / cluster_.x % cluster_.y, z = c.rank / cluster_.x / cluster_.y;
    c.block = {first.x + x, first.y + y, first.z + z};
    c.warps = &warps_[c.rank * warps_per_cta_];
    c.pool = 0;
    c.ended = false;
    for (Named &n : c.named) n = Named{};
    for (Group &g : c.groups) g = Group{};
    for (u32 i = 0; i < (c.size + 15) / 16; ++i) {
      Line &line = c.lines[i];
      line.valid = line.flight = line.barrier = line.n_writes = 0;
      line.n_reads = 0;
    }
    c.touched.assign(n_threads_, 0);
  }
  for (Warp &w : warps_) {
    u32 i = &w - warps_.data();
    w = Warp{};
    w.index = i;
    w.ready = w.live = kAll;
    w.threads = &threads_[i * 32];
    w.cta = &cta_[i / warps_per_cta_];
    w.registers = share;
    w.rank = launch_.order == DW_HOST_REVERSE ? n_warps_ - 1 - i : i;
    by_rank_[w.rank] = &w;
    set_ready(w);
  }
  for (Thread &t : threads_) {
    u32 i = &t - threads_.data(), j = i % block_threads_;
    t.warp = &warps_[i / 32];
    t.id = i;
    t.lane = i % 32;
    t.own = 1;
    t.own_fenced = 0;
    t.fence_time = 0;
    t.know = start;
    ++start->refs;
    t.place = {
      {j % block_.x, j / block_.x % block_.y, j / block_.x / block_.y}, t.warp->cta->block, block_, grid_, t.warp->cta->rank};
    t.wait = Wait::kNone;
    t.bar = nullptr;
    t.granted = nullptr;
    t.copies.clear();
    t.by_agent.clear();
    t.group = t.sequence = t.deferred_before = t.polls = 0;
    // Lanes sit at different offsets of a page, or their frames would all want the same cache lines.
    u8 *bottom = stacks_ + i * stack_stride_ + (stack_stride_ - stack_bytes_);
    size_t size = stack_bytes_ - t.lane * 128;
    if (&__asan_unpoison_memory_region) __asan_unpoison_memory_region(bottom, stack_bytes_);
    t.context.fake = nullptr;
    t.context.bottom = bottom;
    t.context.size = size;
#if defined(DW_UCONTEXT)
    getcontext(&t.context.uc);
    t.context.uc.uc_stack.ss_sp = bottom;
    t.context.uc.uc_stack.ss_size = size;
    makecontext(&t.context.uc, fiber_main, 0);
#elif defined(__x86_64__)
    void **sp = (void **)(bottom + size) - 8;  // six registers, the entry, a return address that is never used
    memset(sp, 0, 64);
    sp[6] = (void *)fiber_main;
    t.context.sp = sp;
#else
    u8 *sp = bottom + size - 160;
    memset(sp, 0, 160);
    void (*entry)() = fiber_main;
    memcpy(sp + 88, &entry, 8);  // x30
    t.context.sp = sp;
#endif
  }
  knows_.drop(start);
  if (is_random()) change_mood();
}

void Runner::end_cluster() {
  for (Cta &c : cta_) {
    for (Mbarrier &b : c.bars) {
      for (Know *k : {b.acc, b.last, b.done}) knows_.drop(k);
    }
    c.bars.clear();
    for (Named &n : c.named) {
      knows_.drop(n.acc);
      knows_.drop(n.last);
    }
  }
  for (Warp &w : warps_) {
    for (Know *k : {w.memo_a, w.memo_b, w.memo_out}) knows_.drop(k);
    knows_.drop(w.cluster_granted);
  }
  for (Thread &t : threads_) {
    knows_.drop(t.know);
    t.know = nullptr;
  }
  keep(cluster_acc_, nullptr);
  keep(cluster_last_, nullptr);
  pollers_.clear();
}

void Runner::run() {
  check_launch();
  make_stacks();
  knows_.reset(n_threads_ + 1 + ctas_ * kAgentsPerCta);
  cta_.resize(ctas_);
  warps_.resize(n_warps_);
  threads_.resize(n_threads_);
  ready_.resize((n_warps_ + 63) / 64);
  by_rank_.resize(n_warps_);
  copies_late_ = launch_.order == DW_HOST_FORWARD;
  for (Cta &c : cta_) {
    c.size = launch_.shared_bytes;
    c.data = (u8 *)calloc(c.size / 16 + 1, 16);
    c.lines = (Line *)calloc(c.size / 16 + 1, sizeof(Line));
    if (!c.data || !c.lines) throw std::bad_alloc();
  }
  u64 clusters = (u64)grid_.x * grid_.y * grid_.z / ctas_;
  std::vector<u64> shuffled;
  if (is_random()) {
    for (u64 i = 0; i < clusters; ++i) shuffled.push_back(i);
    for (u64 i = clusters; i > 1; --i) std::swap(shuffled[i - 1], shuffled[(random() >> 11) % i]);
  }
  for (u64 i = 0; i < clusters && !failed_; ++i) {
    start_cluster(is_random() ? shuffled[i] : launch_.order == DW_HOST_REVERSE ? clusters - 1 - i : i);
    Warp *w = next_warp();
    me_ = &w->threads[launch_.order == DW_HOST_REVERSE ? 31 : 0];
    main_.bottom = nullptr;
    jump(main_, me_->context, false);
    end_cluster();
    if (!failed_) report_.ctas += ctas_;
  }
}

Runner::~Runner() {
  for (Cta &c : cta_) {
    if (c.lines) {
      for (u32 i = 0; i <= c.size / 16; ++i) delete c.lines[i].more;
    }
    free(c.lines);
    free(c.data);
  }
  if (!stacks_) return;
  if (&__asan_unpoison_memory_region) __asan_unpoison_memory_region(stacks_, stack_stride_ * n_threads_);
  munmap(stacks_, stack_stride_ * n_threads_);
}

// ---- the table ------------------------------------------------------------------------------------------------
const dw_host_ops kTable = {
  sizeof(dw_host_ops),
  [] { return current_runner->place(); },
  [](Fn fn, u32 v, u32 arg) { return current_runner->lanes(fn, v, arg); },
  [](Fn fn, u32 a, void *to, u32 n) { current_runner->load(fn, a, to, n); },
  [](Fn fn, u32 a, const void *from, u32 n) { current_runner->store(fn, a, from, n); },
  [](Fn fn, u32 a, u32 *r) { current_runner->matrix(fn, a, r); },
  [](Fn fn, float *d, const u32 *a, const u32 *b) { current_runner->mma(fn, d, a, b); },
  [](Fn fn, const void *p, u32 n) { current_runner->global(fn, p, n); },
  [](Fn fn, u32 dst, const void *src, u32 n, u32 bar) { current_runner->copy(fn, dst, src, n, bar); },
  [](Fn fn, u32 arg) { current_runner->copy_group(fn, arg); },
  [](Fn fn) { current_runner->fence(fn); },
  [](Fn fn, u32 id, u32 n) { current_runner->barrier(fn, id, n); },
  [](Fn fn, u32 a, u32 arg) { return current_runner->mbarrier(fn, a, arg); },
  [](Fn fn, u32 n) { current_runner->registers(fn, n); },
  [](Fn fn, u32 a, u32 rank) { return current_runner->cluster(fn, a, rank); },
  [](Fn fn, u32 a, const void *v, u32 n, u32 bar) { current_runner->st_async(fn, a, v, n, bar); },
  [](Fn fn) { current_runner->grid(fn); },
};

}  // namespace

const dw_host_ops *dw_host_ops_table(void) { return &kTable; }

dw_host_status dw_host_run(const dw_host_launch *launch, dw_host_report *report) {
  if (!report || report->size != sizeof *report) return DW_HOST_BAD_ARGUMENT;
  *report = dw_host_report{};
  report->size = sizeof *report;
  Runner *outer = current_runner;
  if (!launch || launch->size != sizeof *launch || outer) {
    snprintf(report->message, sizeof report->message, "The launch is missing, of another version, or inside another launch.");
    return report->status = DW_HOST_BAD_ARGUMENT;
  }
  try {
    Runner runner(*launch, *report);
    current_runner = &runner;
    runner.run();
  } catch (const Failure &) {  // before the first fiber
  } catch (const std::bad_alloc &) {
    report->status = DW_HOST_SYSTEM;
    snprintf(report->message, sizeof report->message, "Out of memory.");
  }
  current_runner = nullptr;
  return report->status;
}

const char *dw_host_status_name(dw_host_status status) {
  switch (status) {
#define X(name, text) \
  case DW_HOST_##name: return #name;
    DW_HOST_STATUS_MAP(X)
#undef X
  }
  return "?";
}

const char *dw_host_status_text(dw_host_status status) {
  switch (status) {
#define X(name, text) \
  case DW_HOST_##name: return text;
    DW_HOST_STATUS_MAP(X)
#undef X
  }
  return "?";
}

// ---- modules --------------------------------------------------------------------------------------------------
struct dw_host_module {
  void *handle;
};

namespace {

dw_host_status say(dw_host_report *report, dw_host_status status, const std::string &message) {
  report->status = status;
  snprintf(report->message, sizeof report->message, "%s", message.c_str());
  return status;
}

bool write_file(const std::string &path, const char *data, size_t n) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  bool ok = true;
  while (n && ok) {
    ssize_t k = write(fd, data, n);
    ok = k > 0 || (k < 0 && errno == EINTR);
    if (k > 0) data += k, n -= k;
  }
  return close(fd) == 0 && ok;
}

// Runs a program with its standard error and output in `out`. False: it could not be started.
bool run_program(const std::vector<std::string> &words, std::string *out, int *status) {
  std::vector<char *> argv;
  for (const std::string &w : words) argv.push_back(const_cast<char *>(w.c_str()));
  argv.push_back(nullptr);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC)) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
  posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
  pid_t pid;
  int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(fds[1]);
  char block[4096];
  ssize_t n;
  while (!error && ((n = read(fds[0], block, sizeof block)) > 0 || (n < 0 && errno == EINTR))) {
    if (n > 0) out->append(block, n);
  }
  close(fds[0]);
  if (error) return false;
  while (waitpid(pid, status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

std::vector<std::string> split(const char *s) {
  std::vector<std::string> words;
  std::string word;
  for (; *s; ++s) {
    if (*s != ' ') {
      word += *s;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(word);
  return words;
}

struct Directory {  // private and gone at the end (a signal that ends the process while the compiler runs leaves it)
  std::string path;
  std::vector<std::string> files;
  bool make() {
    const char *base = getenv("TMPDIR");
    path = std::string(base && *base ? base : "/tmp") + "/draftwood-host-XXXXXX";
    bool ok = mkdtemp(&path[0]) != nullptr;
    if (!ok) path.clear();
    return ok;
  }
  std::string file(const char *name) {
    files.push_back(path + "/" + name);
    return files.back();
  }
  ~Directory() {
    if (path.empty()) return;
    for (const std::string &f : files) unlink(f.c_str());
    rmdir(path.c_str());
  }
};

dw_host_status open_module(dw_host_module **module, const char *source, size_t n, const dw_host_build_options &o,
                           dw_host_report *report) {
  if (o.sanitize && !dlsym(RTLD_DEFAULT, "__asan_init")) {
    return say(report, DW_HOST_BAD_ARGUMENT, "A module with sanitizers needs a program that was built with them.");
  }
  Directory dir;
  if (!dir.make()) return say(report, DW_HOST_SYSTEM, text("No temporary directory could be made: %s.", strerror(errno)));
  std::string cc = dir.file("kernel.cc"), so = dir.file("kernel.so");
  if (!write_file(cc, source, n) || (o.header && !write_file(dir.file("draftwood_host.h"), o.header, o.header_size))) {
    return say(report, DW_HOST_SYSTEM, text("The source could not be written to %s: %s.", dir.path.c_str(), strerror(errno)));
  }

  std::vector<std::string> compilers;
  const char *cxx = o.compiler ? o.compiler : getenv("CXX");
  if (cxx && *cxx) compilers.push_back(cxx);
  if (!o.compiler) {
#ifdef __clang__  // the sanitizers of the two do not mix
    compilers.insert(compilers.end(), {"clang++", "g++"});
#else
    compilers.insert(compilers.end(), {"g++", "clang++"});
#endif
  }
  for (const std::string &compiler : compilers) {
    std::vector<std::string> words = split(compiler.c_str());
    if (words.empty()) continue;
    // No strict aliasing, as nvcc: kernels look at registers as other types. The module keeps to its own functions, whatever
    // another one or the program calls by the same name.
    for (const char *flag : {"-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off",
                             "-fvisibility-inlines-hidden", "-Wl,-Bsymbolic", "-Wno-unknown-pragmas"}) {
      words.push_back(flag);
    }
    if (o.sanitize) {
      for (const char *flag : {"-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g1"}) words.push_back(flag);
    }
    if (o.header) words.push_back("-I" + dir.path);
    for (size_t i = 0; i < o.n_include_dirs; ++i) words.push_back(std::string("-I") + o.include_dirs[i]);
    for (const std::string &w : {std::string("-o"), so, cc}) words.push_back(w);

    std::string output;
    int status = 0;
    if (!run_program(words, &output, &status)) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127 && output.empty()) continue;  // how some systems say "not found"
    if (status) return say(report, DW_HOST_COMPILE, output.empty() ? compiler + " failed." : output);

    void *handle = dlopen(so.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) return say(report, DW_HOST_LOAD, text("%s (TMPDIR must allow executables.)", dlerror()));
    auto bind = (int (*)(const dw_host_ops *))dlsym(handle, "dw_host_bind");
    if (!bind || !bind(&kTable)) {
      dlclose(handle);
      return say(report, DW_HOST_LOAD, "The module was built without draftwood_host.h or with another version of it.");
    }
    *module = new dw_host_module{handle};
    return DW_HOST_OK;
  }
  std::string tried;
  for (const std::string &c : compilers) tried += (tried.empty() ? "" : ", ") + c;
  return say(report, DW_HOST_NO_COMPILER, "No C++ compiler could be started; tried " + tried + ".");
}

}  // namespace

dw_host_status dw_host_module_open(dw_host_module **module, const char *source, size_t n, const dw_host_build_options *options,
                                   dw_host_report *report) {
  if (!report || report->size != sizeof *report) return DW_HOST_BAD_ARGUMENT;
  *report = dw_host_report{};
  report->size = sizeof *report;
  if (!module || !source || !options || options->size != sizeof *options) {
    return say(report, DW_HOST_BAD_ARGUMENT, "An argument is missing or of another version.");
  }
  *module = nullptr;
  try {
    return open_module(module, source, n, *options, report);
  } catch (const std::bad_alloc &) {
    return say(report, DW_HOST_SYSTEM, "Out of memory.");
  }
}

dw_host_entry dw_host_module_entry(const dw_host_module *module, const char *kernel) {
  return (dw_host_entry)dlsym(module->handle, text("%s__host", kernel).c_str());
}

void dw_host_module_close(dw_host_module *module) {
  if (!module) return;
  dlclose(module->handle);
  delete module;
}
