// A CUDA driver without a device, for tests of shared device memory.
//
// Device memory is a mapped file in $FAKE_CUDA_DIR. So a handle can name it, and it outlives the kill of its process.
// Each letter of $FAKE_CUDA_DEVICES is a device, with a UUID of that letter. Streams do their work at once, unless
// fake_keep_busy() makes them busy. The log of the important calls is $FAKE_CUDA_DIR/log.<pid>. The driver checks only
// what the tests ask about.
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  NOT_INITIALIZED = 3,
  NO_CONTEXT = 201,
  MAP_FAILED_CODE = 205,
  ALREADY_MAPPED = 208,
  NOT_READY = 600,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713
};
enum { MOST = 4096 };

typedef struct {
  char bytes[64];
} Handle;

typedef struct {
  char name[64];  // empty: the entry is free
  uintptr_t base;
  size_t size;
  uint64_t id;  // of no other allocation in this process
  int device, opened, exportable;
} Region;

typedef struct {
  char name[64];
  uint32_t *recorded, *passed;
} Event;

static int initialized_in, numbers, busy;
static _Thread_local int current = -1, pushed[64], depth;
static Region regions[MOST];
static Event events[MOST];
static struct {
  uintptr_t base;
  size_t size;
} registered[MOST];

// Guards all state that is not thread-local. LOCKED holds it until the end of the block.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void unlock(pthread_mutex_t** held) {
  pthread_mutex_unlock(*held);
}

static pthread_mutex_t* lock(void) {
  pthread_mutex_lock(&mutex);
  return &mutex;
}

#define LOCKED __attribute__((cleanup(unlock), unused)) pthread_mutex_t* held = lock()

static void say(const char* format, ...) {
  char path[PATH_MAX], line[256];
  snprintf(path, sizeof path, "%s/log.%d", getenv("FAKE_CUDA_DIR"), getpid());
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  line[length++] = '\n';
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd < 0 || write(fd, line, (size_t)length) != length) abort();
  close(fd);
}

static const char* devices(void) {
  const char* known = getenv("FAKE_CUDA_DEVICES");
  return known ? known : "a";
}

static int is_ready(void) {
  return initialized_in == getpid();
}

static void* map_file(const char* name, size_t* size, int make) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA_DIR"), name);
  int fd = open(path, make ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (fd < 0) return NULL;
  struct stat status;
  if (make && ftruncate(fd, (off_t)*size) != 0) abort();
  if (fstat(fd, &status) != 0) abort();
  *size = (size_t)status.st_size;
  void* at = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? NULL : at;
}

static Region* region_of(uintptr_t address) {
  for (int i = 0; i < MOST; ++i) {
    Region* known = &regions[i];
    if (known->name[0] && address >= known->base && address < known->base + known->size) return known;
  }
  return NULL;
}

static Region* add_region(const char* name, size_t size, int make) {
  for (int i = 0; i < MOST; ++i) {
    if (regions[i].name[0]) continue;
    Region* made = &regions[i];
    void* base = map_file(name, &size, make);
    if (!base) return NULL;
    strcpy(made->name, name);
    *made = (Region){.base = (uintptr_t)base,
                     .size = size,
                     .id = (uint64_t)++numbers,
                     .device = current,
                     .opened = !make,
                     .exportable = 1};
    strcpy(made->name, name);
    return made;
  }
  abort();
}

// --- for the tests ---------------------------------------------------------------------------------------------------

// Allocates memory on the current device. If not exportable, the driver has no handle for it, as for memory that is
// made of pieces.
uintptr_t fake_allocate(size_t size, int exportable) {
  LOCKED;
  char name[64];
  snprintf(name, sizeof name, "memory.%c.%d.%d", devices()[current < 0 ? 0 : current], getpid(), ++numbers);
  const int before = current;
  if (current < 0) current = 0;
  Region* made = add_region(name, size, 1);
  current = before;
  made->exportable = exportable;
  return made->base;
}

// Keeps the streams of this process busy until it is called with 0.
void fake_keep_busy(int is_busy) {
  LOCKED;
  busy = is_busy;
  if (busy) return;
  for (int i = 0; i < MOST; ++i) {
    if (events[i].name[0]) __atomic_store_n(events[i].passed, *events[i].recorded, __ATOMIC_RELEASE);
  }
}

int fake_open_count(void) {
  LOCKED;
  int count = 0;
  for (int i = 0; i < MOST; ++i) count += regions[i].name[0] && regions[i].opened;
  return count;
}

int fake_event_count(void) {
  LOCKED;
  int count = 0;
  for (int i = 0; i < MOST; ++i) count += events[i].name[0] != 0;
  return count;
}

// Returns the number of bytes of registered host memory within [base, base + size).
size_t fake_registered(uintptr_t base, size_t size) {
  LOCKED;
  size_t bytes = 0;
  for (int i = 0; i < MOST; ++i) {
    if (registered[i].size && registered[i].base >= base && registered[i].base + registered[i].size <= base + size)
      bytes += registered[i].size;
  }
  return bytes;
}

// --- the driver ------------------------------------------------------------------------------------------------------

int cuInit(unsigned flags) {
  LOCKED;
  (void)flags;
  if (initialized_in && !is_ready()) return NOT_INITIALIZED;
  initialized_in = getpid();
  say("cuInit");
  return SUCCESS;
}

int cuGetErrorName(int code, const char** text) {
  *text = code == INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
          : code == NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED"
          : code == MAP_FAILED_CODE ? "CUDA_ERROR_MAP_FAILED"
                                    : "CUDA_ERROR_OF_THE_FAKE";
  return SUCCESS;
}

int cuDeviceGetCount(int* count) {
  *count = (int)strlen(devices());
  return SUCCESS;
}

int cuDeviceGet(int* device, int number) {
  *device = number;
  return SUCCESS;
}

int cuDeviceGetUuid_v2(void* uuid, int device) {
  memset(uuid, devices()[device], 16);
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!is_ready()) return NOT_INITIALIZED;
  *context = (void*)(uintptr_t)(device + 1);
  return SUCCESS;
}

int cuCtxGetCurrent(void** context) {
  *context = (void*)(uintptr_t)(current + 1);
  return SUCCESS;
}

int cuCtxPushCurrent_v2(void* context) {
  pushed[depth++] = current;
  current = (int)(uintptr_t)context - 1;
  return SUCCESS;
}

int cuCtxPopCurrent_v2(void** context) {
  *context = (void*)(uintptr_t)(current + 1);
  current = pushed[--depth];
  return SUCCESS;
}

int cuPointerGetAttribute(void* data, int attribute, uint64_t pointer) {
  LOCKED;
  Region* known = region_of(pointer);
  if (!known) return INVALID_VALUE;
  if (attribute == 7) {
    *(uint64_t*)data = known->id;
    return SUCCESS;
  }
  if (attribute != 9) return INVALID_VALUE;
  *(int*)data = known->device < 0 ? 0 : known->device;
  return SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t pointer) {
  LOCKED;
  Region* known = region_of(pointer);
  if (!known) return INVALID_VALUE;
  *base = known->base;
  *size = known->size;
  return SUCCESS;
}

int cuIpcGetMemHandle(Handle* handle, uint64_t pointer) {
  LOCKED;
  Region* known = region_of(pointer);
  if (!known || known->opened || !known->exportable) return INVALID_VALUE;
  memset(handle, 0, sizeof *handle);
  strcpy(handle->bytes, known->name);
  say("export %s", known->name);
  return SUCCESS;
}

int cuIpcOpenMemHandle_v2(uint64_t* base, Handle handle, unsigned flags) {
  LOCKED;
  (void)flags;
  if (current < 0) return NO_CONTEXT;
  for (int i = 0; i < MOST; ++i) {
    if (strcmp(regions[i].name, handle.bytes) == 0) return ALREADY_MAPPED;
  }
  Region* made = add_region(handle.bytes, 0, 0);
  if (!made) return MAP_FAILED_CODE;
  *base = made->base;
  say("open %s on %c", handle.bytes, devices()[current]);
  return SUCCESS;
}

int cuIpcCloseMemHandle(uint64_t base) {
  LOCKED;
  Region* known = region_of(base);
  if (!known || !known->opened || known->base != base) return INVALID_VALUE;
  say("close %s", known->name);
  munmap((void*)known->base, known->size);
  known->name[0] = 0;
  return SUCCESS;
}

static Event* add_event(const char* name, int make) {
  for (int i = 1; i < MOST; ++i) {
    if (events[i].name[0]) continue;
    size_t size = 2 * sizeof(uint32_t);
    uint32_t* words = map_file(name, &size, make);
    if (!words) return NULL;
    strcpy(events[i].name, name);
    events[i].recorded = words;
    events[i].passed = words + 1;
    return &events[i];
  }
  abort();
}

int cuEventCreate(void** event, unsigned flags) {
  LOCKED;
  char name[64];
  if (current < 0) return NO_CONTEXT;
  snprintf(name, sizeof name, "event.%d.%d.%u", getpid(), ++numbers, flags);
  *event = add_event(name, 1);
  say("create %s", name);
  return SUCCESS;
}

int cuEventRecord(void* event, void* stream) {
  LOCKED;
  Event* known = event;
  ++*known->recorded;
  if (!busy) __atomic_store_n(known->passed, *known->recorded, __ATOMIC_RELEASE);
  say("record %s in %d", known->name, (int)(uintptr_t)stream);
  return SUCCESS;
}

int cuEventQuery(void* event) {
  LOCKED;
  Event* known = event;
  return __atomic_load_n(known->passed, __ATOMIC_ACQUIRE) == *known->recorded ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(void* event) {
  say("synchronize %s", ((Event*)event)->name);
  while (cuEventQuery(event) != SUCCESS) usleep(1000);
  return SUCCESS;
}

int cuEventDestroy_v2(void* event) {
  LOCKED;
  Event* known = event;
  if (!known || !known->name[0]) return INVALID_VALUE;
  say("destroy %s", known->name);
  munmap(known->recorded, 2 * sizeof(uint32_t));
  known->name[0] = 0;
  return SUCCESS;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  (void)flags;
  say("wait in %d for %s", (int)(uintptr_t)stream, ((Event*)event)->name);
  return SUCCESS;
}

int cuIpcGetEventHandle(Handle* handle, void* event) {
  memset(handle, 0, sizeof *handle);
  strcpy(handle->bytes, ((Event*)event)->name);
  return SUCCESS;
}

int cuIpcOpenEventHandle(void** event, Handle handle) {
  LOCKED;
  *event = add_event(handle.bytes, 0);
  say("import %s", handle.bytes);
  return *event ? SUCCESS : MAP_FAILED_CODE;
}

int cuMemHostRegister_v2(void* address, size_t size, unsigned flags) {
  LOCKED;
  uintptr_t base = (uintptr_t)address;
  int place = -1;
  if (!is_ready() || base % 4096 || size % 4096 || size == 0) return INVALID_VALUE;
  for (int i = 0; i < MOST; ++i) {
    if (registered[i].size == 0) place = i;
    if (registered[i].size && base < registered[i].base + registered[i].size && registered[i].base < base + size)
      return ALREADY_REGISTERED;
  }
  if (place < 0) return INVALID_VALUE;
  registered[place].base = base;
  registered[place].size = size;
  say("register %zu flags %u", size, flags);
  return SUCCESS;
}

int cuMemHostUnregister(void* address) {
  LOCKED;
  for (int i = 0; i < MOST; ++i) {
    if (registered[i].size == 0 || registered[i].base != (uintptr_t)address) continue;
    say("unregister %zu", registered[i].size);
    registered[i].size = 0;
    return SUCCESS;
  }
  return NOT_REGISTERED;
}
