// Reads what a cubin says about itself: an ELF file whose layout beyond ELF was learned by experiment and checked against the
// compiler's log and the driver. Every read is bounded: the bytes may come from anywhere.
#define _GNU_SOURCE 1

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum {
  MACHINE_CUDA = 190,
  SYMBOL_ENTRY = 0x10,     // st_other: a kernel, not a device function
  RESERVED_SHARED = 1024,  // of each block, from sm_90 on; inside the size of .nv.shared.NAME
  OLD_ABI = 7,             // ELF ABI version of sm_90 and before under NVRTC 12
  OLD_SPECIFIC_FLAG = 0x800,
  OLD_BARRIERS_SHIFT = 20,  // in the flags of .text.NAME
  SPECIFIC_FLAG = 0x8,      // NVRTC 12; from 13 on a .nv.compat record says it
};

// Attributes of .nv.info (per file, with a symbol index) and .nv.info.NAME (per kernel).
enum {
  INFO_MAX_THREADS = 0x05,
  INFO_REQUIRED_THREADS = 0x10,
  INFO_FRAME_SIZE = 0x11,
  INFO_MIN_STACK_SIZE = 0x12,
  INFO_REGISTERS = 0x2f,
  INFO_BARRIERS = 0x4c,
  INFO_SETMAXNREG = 0x54,
  COMPAT_SPECIFIC = 0x09,
};

typedef struct bytes {
  const unsigned char *data;
  size_t size;
} bytes;

struct image {
  bytes file;
  Elf64_Ehdr header;
  bytes section_names;
  bytes symbols, symbol_names;  // empty where there is no symbol table
};

// ---- bounded reads --------------------------------------------------------------------------------------------

static bool slice(bytes whole, uint64_t offset, uint64_t size, bytes *part) {
  if (offset > whole.size || size > whole.size - offset) return false;
  *part = (bytes){whole.data + offset, (size_t)size};
  return true;
}

static uint32_t read_u16(const unsigned char *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t read_u32(const unsigned char *p) { return read_u16(p) | read_u16(p + 2) << 16; }

// A string of a string table, or NULL where it does not end inside.
static const char *string_at(bytes table, uint64_t offset) {
  if (offset >= table.size || !memchr(table.data + offset, 0, table.size - offset)) return NULL;
  return (const char *)table.data + offset;
}

// Call with i < e_shnum, once image_open has bounded the table.
static Elf64_Shdr section_at(const struct image *image, unsigned i) {
  Elf64_Shdr section;
  memcpy(&section, image->file.data + image->header.e_shoff + (uint64_t)i * sizeof section, sizeof section);
  return section;
}

static bool section_bytes(const struct image *image, const Elf64_Shdr *section, bytes *content) {
  *content = (bytes){image->file.data, 0};
  return section->sh_type == SHT_NOBITS || slice(image->file, section->sh_offset, section->sh_size, content);
}

static bool find_section(const struct image *image, const char *name, Elf64_Shdr *section) {
  for (unsigned i = 0; i < image->header.e_shnum; i++) {
    *section = section_at(image, i);
    const char *found = string_at(image->section_names, section->sh_name);
    if (found && strcmp(found, name) == 0) return true;
  }
  return false;
}

// The section "PREFIX.NAME" of a kernel.
static bool find_kernel_section(const struct image *image, const char *prefix, const char *kernel, Elf64_Shdr *section) {
  size_t length = strlen(prefix);
  for (unsigned i = 0; i < image->header.e_shnum; i++) {
    *section = section_at(image, i);
    const char *found = string_at(image->section_names, section->sh_name);
    if (found && strncmp(found, prefix, length) == 0 && strcmp(found + length, kernel) == 0) return true;
  }
  return false;
}

static bytes named_bytes(const struct image *image, const char *prefix, const char *kernel) {
  Elf64_Shdr section;
  bytes content = {NULL, 0};
  if (find_kernel_section(image, prefix, kernel, &section)) section_bytes(image, &section, &content);
  return content;
}

// ---- opening --------------------------------------------------------------------------------------------------

static const char *check_header(const struct image *image) {
  const Elf64_Ehdr *header = &image->header;
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return "it is not an ELF file";
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB)
    return "it is not 64-bit little-endian";
  if (header->e_machine != MACHINE_CUDA) return "it is not for a CUDA machine";
  if (header->e_type != ET_EXEC) return "it is not linked";
  if (header->e_ehsize != sizeof *header || header->e_shentsize != sizeof(Elf64_Shdr)) return "its header sizes are wrong";
  if (header->e_phnum && header->e_phentsize != sizeof(Elf64_Phdr)) return "its header sizes are wrong";
  if (header->e_shstrndx >= header->e_shnum) return "its section names are missing";
  return NULL;
}

// Tables and everything that they point at lie inside the file: a truncated file fails here.
static const char *check_extent(const struct image *image) {
  const Elf64_Ehdr *header = &image->header;
  bytes part;
  if (!slice(image->file, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr), &part))
    return "its section table is cut";
  for (unsigned i = 0; i < header->e_shnum; i++) {
    Elf64_Shdr section = section_at(image, i);
    if (!section_bytes(image, &section, &part)) return "a section is cut";
  }
  bytes segments;
  if (!slice(image->file, header->e_phoff, (uint64_t)header->e_phnum * sizeof(Elf64_Phdr), &segments)) {
    return "its segment table is cut";
  }
  for (unsigned i = 0; i < header->e_phnum; i++) {
    Elf64_Phdr segment;
    memcpy(&segment, segments.data + i * sizeof segment, sizeof segment);
    if (!slice(image->file, segment.p_offset, segment.p_filesz, &part)) return "a segment is cut";
  }
  return NULL;
}

static const char *find_tables(struct image *image) {
  Elf64_Shdr names = section_at(image, image->header.e_shstrndx);
  if (names.sh_type != SHT_STRTAB || !section_bytes(image, &names, &image->section_names))
    return "its section names are missing";
  for (unsigned i = 0; i < image->header.e_shnum; i++) {
    Elf64_Shdr section = section_at(image, i);
    if (section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_entsize != sizeof(Elf64_Sym) || section.sh_link >= image->header.e_shnum) return "its symbol table is wrong";
    Elf64_Shdr strings = section_at(image, section.sh_link);
    section_bytes(image, &section, &image->symbols);
    section_bytes(image, &strings, &image->symbol_names);
    return NULL;
  }
  return "it has no symbol table";
}

// NULL, or what is wrong with it.
static const char *image_open(const void *data, size_t size, struct image *image) {
  *image = (struct image){.file = {data, size}};
  if (!data || size < sizeof image->header) return "it is shorter than its header";
  memcpy(&image->header, data, sizeof image->header);
  const char *wrong = check_header(image);
  if (!wrong) wrong = check_extent(image);
  if (!wrong) wrong = find_tables(image);
  return wrong;
}

static size_t symbol_count(const struct image *image) { return image->symbols.size / sizeof(Elf64_Sym); }

static Elf64_Sym symbol_at(const struct image *image, size_t i) {
  Elf64_Sym symbol;
  memcpy(&symbol, image->symbols.data + i * sizeof symbol, sizeof symbol);
  return symbol;
}

// ---- attributes -----------------------------------------------------------------------------------------------

struct attribute {
  unsigned id;
  bytes value;
};

// Records of .nv.info*: u8 format, u8 attribute, then two value bytes, or for format 4 a u16 size and that many bytes.
static bool next_attribute(bytes *rest, struct attribute *attribute) {
  bytes value;
  if (rest->size < 4) return false;
  attribute->id = rest->data[1];
  bool sized = rest->data[0] == 4;
  if (!slice(*rest, sized ? 4 : 2, sized ? read_u16(rest->data + 2) : 2, &value)) return false;
  attribute->value = value;
  size_t used = (size_t)(value.data - rest->data) + value.size;
  *rest = (bytes){rest->data + used, rest->size - used};
  return true;
}

static int first_byte(bytes value) { return value.size ? value.data[0] : 0; }

// Registers and stack: {u32 symbol, u32 value}.
static void read_file_info(bytes info, size_t symbol, dw_resources *kernel) {
  struct attribute attribute;
  while (next_attribute(&info, &attribute)) {
    if (attribute.value.size < 8 || read_u32(attribute.value.data) != symbol) continue;
    uint32_t raw = read_u32(attribute.value.data + 4);
    int value = raw <= INT32_MAX ? (int)raw : INT32_MAX;
    if (attribute.id == INFO_REGISTERS) kernel->registers = value;
    // The frame is the kernel's own, the minimum counts what it calls as well.
    bool stack = attribute.id == INFO_FRAME_SIZE || attribute.id == INFO_MIN_STACK_SIZE;
    if (stack && value > kernel->stack_bytes) kernel->stack_bytes = value;
  }
}

static int thread_count(bytes value) {
  uint64_t threads = 1;
  if (value.size < 12) return 0;
  for (int axis = 0; axis < 3; axis++) {
    uint32_t extent = read_u32(value.data + 4 * axis);
    if (extent > 1024) return 0;
    threads *= extent;
  }
  return (int)threads;
}

static void read_kernel_info(bytes info, dw_resources *kernel) {
  struct attribute attribute;
  while (next_attribute(&info, &attribute)) {
    switch (attribute.id) {
      case INFO_MAX_THREADS:
      case INFO_REQUIRED_THREADS: kernel->max_threads = thread_count(attribute.value); break;
      case INFO_BARRIERS: kernel->barriers = first_byte(attribute.value); break;
      case INFO_SETMAXNREG: kernel->uses_setmaxnreg = 1; break;
      default: break;
    }
  }
}

static int read_shared(const struct image *image, const char *kernel, int arch) {
  Elf64_Shdr section;
  if (!find_kernel_section(image, ".nv.shared.", kernel, &section)) return 0;
  uint64_t reserved = arch >= 90 ? RESERVED_SHARED : 0;
  if (section.sh_size < reserved || section.sh_size - reserved > INT32_MAX) return 0;
  return (int)(section.sh_size - reserved);
}

static bool old_abi(const struct image *image) { return image->header.e_ident[EI_ABIVERSION] <= OLD_ABI; }

static int read_arch(const struct image *image) {
  uint32_t flags = image->header.e_flags;
  return old_abi(image) ? (int)(flags & 0xff) : (int)(flags >> 8 & 0xff);
}

// Built for one architecture alone ("sm_120a")? Each ELF version has its own way to say so.
static bool read_specific(const struct image *image) {
  uint32_t flags = image->header.e_flags;
  if (old_abi(image)) return flags & OLD_SPECIFIC_FLAG;
  Elf64_Shdr section;
  bytes compat;
  struct attribute attribute;
  if (find_section(image, ".nv.compat", &section) && section_bytes(image, &section, &compat)) {
    while (next_attribute(&compat, &attribute)) {
      if (attribute.id == COMPAT_SPECIFIC) return first_byte(attribute.value) == 1;
    }
  }
  return flags & SPECIFIC_FLAG;
}

// ---- kernels --------------------------------------------------------------------------------------------------

static void read_kernel(const struct image *image, size_t symbol, const char *name, int arch, const Elf64_Shdr *code,
                        dw_resources *kernel) {
  *kernel = (dw_resources){.spill_stores = -1, .spill_loads = -1};
  snprintf(kernel->name, sizeof kernel->name, "%s", name);
  read_file_info(named_bytes(image, ".nv.info", ""), symbol, kernel);
  read_kernel_info(named_bytes(image, ".nv.info.", name), kernel);
  kernel->shared_static = read_shared(image, name, arch);
  if (old_abi(image)) kernel->barriers = (int)(code->sh_flags >> OLD_BARRIERS_SHIFT & 0x7f);
}

// NULL, or what is wrong. Fills at most DW_KERNELS_MAX.
static const char *read_kernels(const struct image *image, int arch, dw_resources *kernels, int *count) {
  Elf64_Shdr code;
  for (size_t i = 0; i < symbol_count(image); i++) {
    Elf64_Sym symbol = symbol_at(image, i);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & SYMBOL_ENTRY)) continue;
    const char *name = string_at(image->symbol_names, symbol.st_name);
    if (!name || !find_kernel_section(image, ".text.", name, &code)) return "a kernel has no code";
    if (*count == DW_KERNELS_MAX) return "it has more kernels than are supported";
    read_kernel(image, i, name, arch, &code, &kernels[(*count)++]);
  }
  return NULL;
}

dw_status dw__cubin_read(const void *data, size_t size, int *arch, bool *specific, dw_resources *kernels, int *count,
                         dw_error *error) {
  struct image image;
  dw_resources found[DW_KERNELS_MAX];
  int found_count = 0, found_arch = 0;
  const char *wrong = image_open(data, size, &image);
  if (!wrong) {
    found_arch = read_arch(&image);
    if (found_arch == 0) wrong = "it names no architecture";
  }
  if (!wrong) wrong = read_kernels(&image, found_arch, found, &found_count);
  if (wrong) return dw__fail(error, DW_BAD_CUBIN, "cubin", "", "", "%s (%zu bytes)", wrong, size);
  if (arch) *arch = found_arch;
  if (specific) *specific = read_specific(&image);
  if (kernels) memcpy(kernels, found, (size_t)found_count * sizeof *kernels);
  if (count) *count = found_count;
  return DW_OK;
}

bool dw__cubin_calls_driver(const void *data, size_t size, char name[64]) {
  static const char prefix[] = "__cuda_syscall_";
  struct image image;
  name[0] = 0;
  if (image_open(data, size, &image)) return false;
  for (size_t i = 0; i < symbol_count(&image); i++) {
    Elf64_Sym symbol = symbol_at(&image, i);
    const char *text = symbol.st_shndx == SHN_UNDEF ? string_at(image.symbol_names, symbol.st_name) : NULL;
    if (!text || strncmp(text, prefix, strlen(prefix)) != 0) continue;
    snprintf(name, 64, "%s", text);
    return true;
  }
  return false;
}

// ---- the compiler's log ---------------------------------------------------------------------------------------

typedef struct spills {
  int stores, loads;
} spills;

// "... 136 bytes stack frame, 224 bytes spill stores, 216 bytes spill loads": NVRTC puts a dot before it, nvcc blanks.
static bool parse_spills(const char *line, spills *found) {
  static const char anchor[] = "bytes stack frame, ";
  size_t length = strcspn(line, "\n");
  const char *numbers = memmem(line, length, anchor, strlen(anchor));
  return numbers &&
         sscanf(numbers + strlen(anchor), "%d bytes spill stores, %d bytes spill loads", &found->stores, &found->loads) == 2;
}

static dw_resources *kernel_named(const char *name, size_t length, dw_resources *kernels, int count) {
  size_t kept = sizeof kernels->name - 1;  // longer names were cut
  for (int i = 0; i < count; i++) {
    size_t known = strlen(kernels[i].name);
    if (known == (length < kept ? length : kept) && memcmp(kernels[i].name, name, known) == 0) return &kernels[i];
  }
  return NULL;
}

void dw__cubin_read_log(const char *log, dw_resources *kernels, int count) {
  static const char anchor[] = "Function properties for ";
  spills called = {0};
  for (const char *at = log; at && (at = strstr(at, anchor));) {
    at += strlen(anchor);
    size_t length = strcspn(at, "\r\n");
    const char *line = at + length + strspn(at + length, "\r\n");
    spills found;
    if (!parse_spills(line, &found)) continue;
    dw_resources *kernel = kernel_named(at, length, kernels, count);
    if (kernel) {
      kernel->spill_stores = found.stores;
      kernel->spill_loads = found.loads;
    } else {
      called.stores += found.stores;
      called.loads += found.loads;
    }
  }
  // Which kernel calls a function that was not inlined the log does not say: its spills count for each.
  for (int i = 0; i < count; i++) {
    if (kernels[i].spill_stores < 0) continue;
    kernels[i].spill_stores += called.stores;
    kernels[i].spill_loads += called.loads;
  }
}
