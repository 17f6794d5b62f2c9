// Source -> cubin. Finds NVRTC, asks it what it is, and compiles; see runtime.h.
#define _GNU_SOURCE 1

#include <glob.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvrtc_table.h"
#include "runtime.h"
#include "symbols.h"

// 12.9 brought family targets (sm_120f) and --no-cache.
enum { LEAST_MAJOR = 12, LEAST_MINOR = 9 };
#define LEAST_TEXT "12.9 or newer"

// Never unmapped again: NVRTC leaves allocations behind at each unload, and a next context opens it in no time.
enum { OPEN_FLAGS = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE };

#define ARCHS_MAX 64
#define TRIALS_MAX 16

// A target once tried, so that the next question about it costs nothing.
typedef struct trial {
  char target[16];
  bool known;
} trial;

struct trials {
  pthread_mutex_t lock;
  int count;
  trial list[TRIALS_MAX];
};

struct dw__nvrtc {
  dw__nvrtc_table table;
  void *library, *builtins;  // dlopen handles; NULL with a stand-in table
  char path[PATH_MAX];
  char build_id[65];
  char version[32];
  int major, minor;
  int archs[ARCHS_MAX];  // compute capabilities, e.g. 120
  int arch_count;
  struct trials *trials;  // apart, since questions about a const dw__nvrtc fill it
};

// ---- options --------------------------------------------------------------------------------------------------

// The order is part of the build key.
void dw__compile_options(const char *target, dw__options *options) {
  static const char *const always[] = {
    "--std=c++17",                 // pinned: the default follows NVRTC's version
    "--modify-stack-limit=false",  // else each compile changes RLIMIT_STACK of the whole process
    "--no-source-include",         // else files of the working directory could be included
    "--no-cache",                  // else, where a driver is present, NVRTC keeps a second cache under the home directory
    "--ptxas-options=-v",          // spills are in the log only
  };
  // A real architecture (sm_, not compute_) makes NVRTC give a cubin: no driver JIT, no link step.
  snprintf(options->arch, sizeof options->arch, "-arch=%s", target);
  options->count = 0;
  options->list[options->count++] = options->arch;
  for (size_t i = 0; i < DW__COUNT(always); i++) options->list[options->count++] = always[i];
}

// ---- one compile ----------------------------------------------------------------------------------------------

static const char *result_text(const dw__nvrtc *nvrtc, int result) {
  const char *text = nvrtc->table.nvrtcGetErrorString ? nvrtc->table.nvrtcGetErrorString(result) : NULL;
  return text ? text : "no text";
}

static dw_status fail_call(const dw__nvrtc *nvrtc, const char *call, int result, dw_error *error) {
  if (result == DW__NVRTC_OUT_OF_MEMORY) return dw__fail(error, DW_OUT_OF_MEMORY, "nvrtc", "", "", "%s", call);
  return dw__fail(error, DW_COMPILE, "nvrtc", "", "", "%s answered %d (%s)", call, result, result_text(nvrtc, result));
}

typedef int (*size_fn)(dw__nvrtc_program *, size_t *);
typedef int (*bytes_fn)(dw__nvrtc_program *, char *);

// Log, PTX and cubin are fetched alike: a size, then the bytes. A 0 is put behind them.
static int fetch(dw__nvrtc_program *program, size_fn get_size, bytes_fn get_bytes, char **bytes, size_t *size) {
  *bytes = NULL;
  int result = get_size(program, size);
  if (result != DW__NVRTC_SUCCESS) return result;
  *bytes = dw__calloc(*size + 1, 1);
  if (!*bytes) return DW__NVRTC_OUT_OF_MEMORY;
  result = *size ? get_bytes(program, *bytes) : DW__NVRTC_SUCCESS;
  if (result == DW__NVRTC_SUCCESS) return result;
  dw__release(*bytes);
  *bytes = NULL;
  return result;
}

static char *fetch_log(const dw__nvrtc *nvrtc, dw__nvrtc_program *program) {
  char *log;
  size_t size;
  fetch(program, nvrtc->table.nvrtcGetProgramLogSize, nvrtc->table.nvrtcGetProgramLog, &log, &size);
  return log;
}

// "error", then blanks, then a colon: how the front end, NVRTC itself and ptxas all mark theirs.
static bool line_is_error(const char *line, size_t length, const char *word) {
  size_t word_length = strlen(word);
  for (size_t i = 0; i + word_length < length; i++) {
    if (memcmp(line + i, word, word_length) != 0) continue;
    size_t end = i + word_length;
    while (end < length && line[end] == ' ') end++;
    if (end < length && line[end] == ':') return true;
  }
  return false;
}

// The first line that says what is wrong, else the first line that says anything. Copied, cut at `capacity`.
static void first_error_line(const char *log, char *text, size_t capacity) {
  text[0] = 0;
  for (const char *line = log, *next; line && *line; line = next) {
    size_t length = strcspn(line, "\n");
    next = line[length] ? line + length + 1 : NULL;
    bool says_error = line_is_error(line, length, "error") || line_is_error(line, length, "fatal");
    if (length && (says_error || !text[0]))
      snprintf(text, capacity, "%.*s", (int)(length < capacity ? length : capacity), line);
    if (says_error) return;
  }
}

static dw_status fail_compile(const dw__nvrtc *nvrtc, const char *name, int result, char *log, dw_error *error) {
  char line[512];
  first_error_line(log, line, sizeof line);
  if (result == DW__NVRTC_OUT_OF_MEMORY) fail_call(nvrtc, "nvrtcCompileProgram", result, error);
  else if (line[0]) dw__fail(error, DW_COMPILE, "source", "", "", "%s", line);
  else
    dw__fail(error, DW_COMPILE, "source", name, "", "nvrtcCompileProgram answered %d (%s) with an empty log", result,
             result_text(nvrtc, result));
  dw__error_log(error, log);
  return result == DW__NVRTC_OUT_OF_MEMORY ? DW_OUT_OF_MEMORY : DW_COMPILE;
}

// Compiles and hands back the program, whatever came of it; the compile's own result is the return value.
static int compile_program(const dw__nvrtc *nvrtc, const char *name, const char *source, const char *const *options,
                           size_t count, dw__nvrtc_program **program) {
  *program = NULL;
  int result = nvrtc->table.nvrtcCreateProgram(program, source, name, 0, NULL, NULL);
  if (result != DW__NVRTC_SUCCESS) {
    *program = NULL;
    return result;
  }
  return nvrtc->table.nvrtcCompileProgram(*program, (int)count, options);
}

static void destroy_program(const dw__nvrtc *nvrtc, dw__nvrtc_program *program) {
  if (program) nvrtc->table.nvrtcDestroyProgram(&program);
}

// ---- targets --------------------------------------------------------------------------------------------------

// "sm_120f" -> 120 and 'f' (0 without a suffix).
static bool parse_target(const char *target, int *arch, char *suffix) {
  char *end;
  if (strncmp(target, "sm_", 3) != 0 || target[3] < '1' || target[3] > '9') return false;
  long number = strtol(target + 3, &end, 10);
  if (number > 9999 || end - target > 8) return false;
  *arch = (int)number;
  *suffix = *end;
  return *end == 0 || ((*end == 'a' || *end == 'f') && end[1] == 0);
}

static bool has_arch(const dw__nvrtc *nvrtc, int arch) {
  for (int i = 0; i < nvrtc->arch_count; i++) {
    if (nvrtc->archs[i] == arch) return true;
  }
  return false;
}

// NVRTC lists base architectures only, so a suffix is asked about by compiling nothing for it (about 20 ms).
static bool try_target(const dw__nvrtc *nvrtc, const char *target) {
  dw__options options;
  dw__nvrtc_program *program;
  dw__compile_options(target, &options);
  int result = compile_program(nvrtc, "target.cu", "", options.list, options.count, &program);
  destroy_program(nvrtc, program);
  return result == DW__NVRTC_SUCCESS;
}

static bool recall_trial(const struct trials *trials, const char *target, bool *known) {
  for (int i = 0; i < trials->count; i++) {
    if (strcmp(trials->list[i].target, target) != 0) continue;
    *known = trials->list[i].known;
    return true;
  }
  return false;
}

bool dw__nvrtc_has_target(const dw__nvrtc *nvrtc, const char *target) {
  int arch;
  char suffix;
  bool known = false;
  if (!parse_target(target, &arch, &suffix) || !has_arch(nvrtc, arch)) return false;
  if (!suffix) return true;

  // Held through the trial: threads that ask together wait for one trial instead of making one each.
  pthread_mutex_lock(&nvrtc->trials->lock);
  if (!recall_trial(nvrtc->trials, target, &known)) {
    known = try_target(nvrtc, target);
    if (nvrtc->trials->count < TRIALS_MAX) {
      trial *added = &nvrtc->trials->list[nvrtc->trials->count++];
      snprintf(added->target, sizeof added->target, "%s", target);
      added->known = known;
    }
  }
  pthread_mutex_unlock(&nvrtc->trials->lock);
  return known;
}

// The first NVRTC that knows a target, where we can tell.
static const char *target_since(int arch, char suffix) {
  static const struct {
    int arch;
    const char *since;
  } table[] = {{90, "11.8"}, {100, "12.8"}, {103, "12.9"}, {110, "13.0"}, {120, "12.8"}, {121, "12.9"}};
  if (suffix == 'f') return arch >= 100 ? LEAST_TEXT : NULL;
  for (size_t i = 0; i < DW__COUNT(table); i++) {
    if (table[i].arch == arch) return table[i].since;
  }
  return NULL;
}

static dw_status fail_target(const dw__nvrtc *nvrtc, const char *target, dw_error *error) {
  char allowed[sizeof error->allowed] = "";
  size_t used = 0;
  for (int i = 0; i < nvrtc->arch_count && used < sizeof allowed; i++) {
    used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%ssm_%d", i ? ", " : "", nvrtc->archs[i]);
  }
  int arch = 0;
  char suffix = 0;
  const char *since = parse_target(target, &arch, &suffix) ? target_since(arch, suffix) : NULL;
  return dw__fail(error, DW_UNSUPPORTED_TARGET, "target", target, allowed, "%s (%s) does not compile for it%s%s",
                  nvrtc->version, nvrtc->path, since ? "; it needs NVRTC " : "", since ? since : "");
}

// Of the options, "" where they name none.
static const char *options_target(const dw__options *options) {
  const char *equals = strchr(options->arch, '=');
  return equals ? equals + 1 : "";
}

dw_status dw__nvrtc_compile(const dw__nvrtc *nvrtc, const char *name, const char *source, const dw__options *options,
                            void **cubin, size_t *size, char **log, dw_error *error) {
  const char *target = options_target(options);
  dw__nvrtc_program *program;
  char *bytes = NULL, *text;
  int arch;
  char suffix;
  dw_status status;
  *cubin = NULL;
  *size = 0;
  *log = NULL;
  if (!parse_target(target, &arch, &suffix) || !has_arch(nvrtc, arch)) return fail_target(nvrtc, target, error);

  int result = compile_program(nvrtc, name, source, options->list, options->count, &program);
  if (!program) return fail_call(nvrtc, "nvrtcCreateProgram", result, error);
  text = fetch_log(nvrtc, program);
  // Asked for after a failed compile, NVRTC answers "success, size 0" for the cubin: only this result can be trusted.
  if (result != DW__NVRTC_SUCCESS) {
    status = fail_compile(nvrtc, name, result, text, error);
    if (status == DW_COMPILE && !dw__nvrtc_has_target(nvrtc, target)) status = fail_target(nvrtc, target, error);
    goto destroy;
  }

  result = fetch(program, nvrtc->table.nvrtcGetCUBINSize, nvrtc->table.nvrtcGetCUBIN, &bytes, size);
  if (result == DW__NVRTC_SUCCESS && *size > 0 && text) {
    *cubin = bytes;
    *log = text;
    status = DW_OK;
    goto destroy;
  }
  if (!text) status = dw__fail(error, DW_OUT_OF_MEMORY, "nvrtc", "", "", "the compiler's log");
  else if (result != DW__NVRTC_SUCCESS) status = fail_call(nvrtc, "nvrtcGetCUBIN", result, error);
  else status = dw__fail(error, DW_COMPILE, "nvrtc", "", "", "NVRTC gave an empty cubin for %s", target);
  dw__release(bytes);
  dw__release(text);
  *size = 0;

destroy:
  destroy_program(nvrtc, program);
  return status;
}

// ---- what was found -------------------------------------------------------------------------------------------

// NVRTC's version call gives major and minor only. Its PTX names the whole of it: "... release 13.0, V13.0.88".
static bool version_from_ptx(const char *ptx, char *text, size_t capacity) {
  int major, minor, patch;
  const char *release = strstr(ptx, "Cuda compilation tools, release ");
  const char *version = release ? strstr(release, ", V") : NULL;
  if (!version || sscanf(version, ", V%d.%d.%d", &major, &minor, &patch) != 3) return false;
  snprintf(text, capacity, "nvrtc %d.%d.%d", major, minor, patch);
  return true;
}

static dw_status fail_builtins(const dw__nvrtc *nvrtc, dw_error *error) {
  char file[64];
  snprintf(file, sizeof file, "libnvrtc-builtins.so.%d.%d", nvrtc->major, nvrtc->minor);
  return dw__fail(error, DW_NO_COMPILER, file, "", "",
                  "NVRTC needs this file, which was neither beside %s nor found by the loader: install both from one package",
                  nvrtc->path);
}

// Compiles nothing to PTX (about 14 ms): tells the full version, and whether this NVRTC works at all.
static dw_status probe(dw__nvrtc *nvrtc, dw_error *error) {
  char arch[32], *ptx = NULL;
  size_t size;
  const char *options[] = {arch, "--modify-stack-limit=false", "--no-source-include", "--no-cache"};
  dw__nvrtc_program *program;
  dw_status status = DW_OK;
  snprintf(arch, sizeof arch, "-arch=compute_%d", nvrtc->archs[nvrtc->arch_count - 1]);
  int result = compile_program(nvrtc, "version.cu", "", options, DW__COUNT(options), &program);
  if (result == DW__NVRTC_SUCCESS) result = fetch(program, nvrtc->table.nvrtcGetPTXSize, nvrtc->table.nvrtcGetPTX, &ptx, &size);

  if (result == DW__NVRTC_BUILTINS) {
    status = fail_builtins(nvrtc, error);
  } else if (result != DW__NVRTC_SUCCESS) {
    status = dw__fail(error, DW_NO_COMPILER, "nvrtc", nvrtc->path, "", "an empty program does not compile: result %d (%s)",
                      result, result_text(nvrtc, result));
    if (program) dw__error_log(error, fetch_log(nvrtc, program));
  } else if (!version_from_ptx(ptx, nvrtc->version, sizeof nvrtc->version)) {
    snprintf(nvrtc->version, sizeof nvrtc->version, "nvrtc %d.%d", nvrtc->major, nvrtc->minor);
  }
  dw__release(ptx);
  destroy_program(nvrtc, program);
  return status;
}

static dw_status check_version(dw__nvrtc *nvrtc, dw_error *error) {
  int result = nvrtc->table.nvrtcVersion(&nvrtc->major, &nvrtc->minor);
  if (result != DW__NVRTC_SUCCESS) {
    return dw__fail(error, DW_NO_COMPILER, "nvrtc", nvrtc->path, LEAST_TEXT, "nvrtcVersion answered %d", result);
  }
  snprintf(nvrtc->version, sizeof nvrtc->version, "nvrtc %d.%d", nvrtc->major, nvrtc->minor);
  if (nvrtc->major > LEAST_MAJOR || (nvrtc->major == LEAST_MAJOR && nvrtc->minor >= LEAST_MINOR)) return DW_OK;
  return dw__fail(error, DW_NO_COMPILER, "nvrtc version", nvrtc->version + strlen("nvrtc "), LEAST_TEXT, "%s", nvrtc->path);
}

static dw_status read_archs(dw__nvrtc *nvrtc, dw_error *error) {
  int count = 0, result = nvrtc->table.nvrtcGetNumSupportedArchs(&count);
  if (result == DW__NVRTC_SUCCESS && count > 0 && count <= ARCHS_MAX)
    result = nvrtc->table.nvrtcGetSupportedArchs(nvrtc->archs);
  else count = 0;
  nvrtc->arch_count = result == DW__NVRTC_SUCCESS ? count : 0;
  if (nvrtc->arch_count > 0) return DW_OK;
  return dw__fail(error, DW_NO_COMPILER, "nvrtc", nvrtc->path, "", "it names no supported architecture (result %d)", result);
}

// NVRTC opens its builtins by bare name. Packages outside the loader's path have no run path to them (13.0's wheel), so the
// copy beside this NVRTC is opened first, under the name it will be asked by. Failure shows in the probe.
static void open_builtins(dw__nvrtc *nvrtc) {
  char real[PATH_MAX], file[PATH_MAX + 64];
  char *slash = realpath(nvrtc->path, real) ? strrchr(real, '/') : NULL;
  if (!slash) return;
  *slash = 0;
  snprintf(file, sizeof file, "%s/libnvrtc-builtins.so.%d.%d", real, nvrtc->major, nvrtc->minor);
  nvrtc->builtins = dlopen(file, OPEN_FLAGS);
}

// Everything that needs the table but not the way it was filled.
static dw_status examine(dw__nvrtc *nvrtc, dw_error *error) {
  dw_status status = check_version(nvrtc, error);
  if (status == DW_OK) status = read_archs(nvrtc, error);
  if (status != DW_OK) return status;
  if (nvrtc->library) open_builtins(nvrtc);
  return probe(nvrtc, error);
}

static dw__nvrtc *nvrtc_new(void) {
  dw__nvrtc *nvrtc = dw__calloc(1, sizeof *nvrtc);
  struct trials *trials = dw__calloc(1, sizeof *trials);
  if (nvrtc && trials && pthread_mutex_init(&trials->lock, NULL) == 0) {
    nvrtc->trials = trials;
    return nvrtc;
  }
  dw__release(nvrtc);
  dw__release(trials);
  return NULL;
}

void dw__nvrtc_close(dw__nvrtc *nvrtc) {
  if (!nvrtc) return;
  if (nvrtc->builtins) dlclose(nvrtc->builtins);
  if (nvrtc->library) dlclose(nvrtc->library);
  pthread_mutex_destroy(&nvrtc->trials->lock);
  dw__release(nvrtc->trials);
  dw__release(nvrtc);
}

dw_status dw__nvrtc_open_table(const dw__nvrtc_table *table, dw__nvrtc **nvrtc, dw_error *error) {
  dw__nvrtc *opened = nvrtc_new();
  *nvrtc = NULL;
  if (!opened) return dw__fail(error, DW_OUT_OF_MEMORY, "nvrtc", "", "", NULL);
  opened->table = *table;
  snprintf(opened->path, sizeof opened->path, "a given table");
  dw_status status = examine(opened, error);
  if (status == DW_OK) *nvrtc = opened;
  else dw__nvrtc_close(opened);
  return status;
}

const char *dw__nvrtc_version(const dw__nvrtc *nvrtc) { return nvrtc->version; }
const char *dw__nvrtc_build_id(const dw__nvrtc *nvrtc) { return nvrtc->build_id; }
const char *dw__nvrtc_path(const dw__nvrtc *nvrtc) { return nvrtc->path; }

// ---- build id -------------------------------------------------------------------------------------------------

struct build_id_search {
  ElfW(Addr) base;
  char *text;
  size_t capacity;
};

static void read_build_id(const char *notes, size_t size, char *text, size_t capacity) {
  ElfW(Nhdr) note;
  for (size_t at = 0; size - at >= sizeof note;) {
    memcpy(&note, notes + at, sizeof note);
    size_t name_size = ((size_t)note.n_namesz + 3) & ~(size_t)3, body_size = ((size_t)note.n_descsz + 3) & ~(size_t)3;
    const char *name = notes + at + sizeof note, *body = name + name_size;
    if (name_size > size - at - sizeof note || body_size > size - at - sizeof note - name_size) return;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
      for (size_t i = 0; i < note.n_descsz && 2 * i + 2 < capacity; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)body[i]);
      return;
    }
    at += sizeof note + name_size + body_size;
  }
}

static int visit_object(struct dl_phdr_info *info, size_t size, void *user) {
  struct build_id_search *search = user;
  (void)size;
  if (info->dlpi_addr != search->base) return 0;
  for (int i = 0; i < info->dlpi_phnum && !search->text[0]; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_NOTE) continue;
    read_build_id((const char *)(uintptr_t)(info->dlpi_addr + segment->p_vaddr), segment->p_memsz, search->text,
                  search->capacity);
  }
  return 1;
}

// ---- finding it -----------------------------------------------------------------------------------------------

// Places are tried in order until one holds an NVRTC that works; the report says what became of each.
struct search {
  dw__nvrtc *found;
  dw__buf report;
  int places;
  dw_error last;  // why the last NVRTC that was there is of no use
};

static const char *const file_names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

static void describe_library(dw__nvrtc *nvrtc, const char *asked) {
  struct link_map *map = NULL;
  bool mapped = dlinfo(nvrtc->library, RTLD_DI_LINKMAP, &map) == 0 && map;
  snprintf(nvrtc->path, sizeof nvrtc->path, "%s", mapped && map->l_name[0] ? map->l_name : asked);
  if (!mapped) return;
  struct build_id_search search = {map->l_addr, nvrtc->build_id, sizeof nvrtc->build_id};
  dl_iterate_phdr(visit_object, &search);
}

static dw_status open_library(void *library, const char *asked, dw__nvrtc **nvrtc, dw_error *error) {
  static const dw__symbol symbols[] = {
#define X(name, arguments) {#name, offsetof(dw__nvrtc_table, name), true},
    DW__NVRTC_REQUIRED(X)
#undef X
      {"nvrtcGetErrorString", offsetof(dw__nvrtc_table, nvrtcGetErrorString), false},
  };
  dw__nvrtc *opened = nvrtc_new();
  if (!opened) {
    dlclose(library);
    return dw__fail(error, DW_OUT_OF_MEMORY, "nvrtc", "", "", NULL);
  }
  opened->library = library;
  describe_library(opened, asked);
  const char *missing = dw__symbols_fill(library, symbols, DW__COUNT(symbols), &opened->table);
  dw_status status = missing ? dw__fail(error, DW_NO_COMPILER, "nvrtc", opened->path, LEAST_TEXT, "it lacks %s", missing)
                             : examine(opened, error);
  if (status == DW_OK) *nvrtc = opened;
  else dw__nvrtc_close(opened);
  return status;
}

// `file` with a slash is that file, without one is left to the loader.
static bool try_file(struct search *search, const char *file) {
  search->places++;
  if (strchr(file, '/') && access(file, F_OK) != 0) {
    dw__buf_printf(&search->report, "%s: not there\n", file);
    return false;
  }
  void *library = dlopen(file, OPEN_FLAGS);
  if (!library) {
    dw__buf_printf(&search->report, "%s\n", dlerror());
    return false;
  }
  if (open_library(library, file, &search->found, &search->last) == DW_OK) return true;
  dw__buf_printf(&search->report, "%s: %s\n", file, search->last.message);
  return false;
}

static bool try_folder(struct search *search, const char *folder) {
  char file[PATH_MAX];
  for (size_t i = 0; i < DW__COUNT(file_names); i++) {
    int length = snprintf(file, sizeof file, "%s/%s", folder, file_names[i]);
    if (length < (int)sizeof file && try_file(search, file)) return true;
  }
  return false;
}

static bool try_toolkit(struct search *search, const char *folder) {
  static const char *const parts[] = {"lib64", "lib"};
  char path[PATH_MAX], real[2][PATH_MAX];
  for (size_t i = 0; i < DW__COUNT(parts); i++) {
    int length = snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
    if (length >= (int)sizeof path || !realpath(path, real[i])) {
      real[i][0] = 0;
      dw__buf_printf(&search->report, "%s: not there\n", path);
      continue;
    }
    if (i > 0 && strcmp(real[0], real[i]) == 0) continue;  // lib64 is often a link to lib
    if (try_folder(search, path)) return true;
  }
  return false;
}

// CUDA_HOME and the like are found in the wild with stray colons; relative entries would depend on the working directory.
static bool try_variable(struct search *search, const char *variable) {
  const char *value = secure_getenv(variable);
  char folder[PATH_MAX];
  while (value && *value) {
    size_t length = strcspn(value, ":");
    if (length > 0 && length < sizeof folder) {
      snprintf(folder, sizeof folder, "%.*s", (int)length, value);
      if (folder[0] != '/') dw__buf_printf(&search->report, "%s=%s: skipped, not an absolute path\n", variable, folder);
      else if (try_toolkit(search, folder)) return true;
    }
    value += length + (value[length] == ':');
  }
  return false;
}

// /usr/local/cuda first, then versioned folders, newest first.
static bool try_installed(struct search *search) {
  glob_t matches;
  bool found = try_toolkit(search, "/usr/local/cuda");
  if (found || glob("/usr/local/cuda-*", 0, NULL, &matches) != 0) return found;
  for (size_t i = matches.gl_pathc; i > 0 && !found; i--) found = try_toolkit(search, matches.gl_pathv[i - 1]);
  globfree(&matches);
  return found;
}

// Beside this library, and where the NVRTC wheels lie beside a Python package of ours.
static bool try_beside(struct search *search) {
  static const char *const parts[] = {"", "/../nvidia/cu13/lib", "/../nvidia/cuda_nvrtc/lib"};
  static const char here = 0;
  Dl_info info;
  char folder[PATH_MAX], path[PATH_MAX];
  if (!dladdr(&here, &info) || !info.dli_fname || !realpath(info.dli_fname, folder)) return false;
  *strrchr(folder, '/') = 0;
  for (size_t i = 0; i < DW__COUNT(parts); i++) {
    int length = snprintf(path, sizeof path, "%s%s", folder, parts[i]);
    if (length < (int)sizeof path && try_folder(search, path)) return true;
  }
  return false;
}

static bool try_everything(struct search *search) {
  for (size_t i = 0; i < DW__COUNT(file_names); i++) {
    if (try_file(search, file_names[i])) return true;
  }
  if (try_variable(search, "CUDA_HOME") || try_variable(search, "CUDA_PATH")) return true;
  if (try_installed(search) || try_beside(search)) return true;
#ifdef DRAFTWOOD_NVRTC_DIR
  // Last, since an installed library must not prefer a folder of the machine that built it.
  if (try_folder(search, DRAFTWOOD_NVRTC_DIR)) return true;
#endif
  return false;
}

// A given place is taken at its word: nothing else is tried.
static bool try_given(struct search *search, const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? try_folder(search, path) : try_file(search, path);
}

// The last NVRTC that was there says most about what to mend; else that there was none. The log tells of every place.
static dw_status fail_search(struct search *search, const char *given, dw_error *error) {
  static const char advice[] =
    "install NVRTC (the Python package nvidia-cuda-nvrtc or a CUDA toolkit), or set DRAFTWOOD_NVRTC to "
    "its file or folder";
  dw_status status = search->last.status;
  if (!error) return status == DW_OK ? DW_NO_COMPILER : status;
  if (status == DW_OK) {
    status = dw__fail(error, DW_NO_COMPILER, "nvrtc", given ? given : "none", LEAST_TEXT, "%d places tried, see the log; %s",
                      search->places, advice);
  } else {
    dw_error_clear(error);
    *error = search->last;
    search->last = (dw_error){0};
    size_t used = strlen(error->message);
    snprintf(error->message + used, sizeof error->message - used, "; %s", advice);
  }
  dw__error_log(error, search->report.data);
  search->report = (dw__buf){0};
  return status;
}

dw_status dw__nvrtc_open(const char *path, dw__nvrtc **nvrtc, dw_error *error) {
  struct search search = {0};
  const char *given = path ? path : secure_getenv("DRAFTWOOD_NVRTC");
  dw_status status = DW_OK;
  if (given && !given[0]) given = NULL;
  bool found = given ? try_given(&search, given) : try_everything(&search);
  *nvrtc = search.found;
  if (!found) status = fail_search(&search, given, error);
  dw__buf_free(&search.report);
  dw_error_clear(&search.last);
  return status;
}
