#include "fork_trim.h"

#include <link.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static bool links_directly(const struct dl_phdr_info *object, const char *library)
{
    const ElfW(Dyn) *dynamic = NULL;
    const char *strings = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    for (const ElfW(Dyn) *entry = dynamic; entry && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
    for (const ElfW(Dyn) *entry = dynamic; strings && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && !strcmp(strings + entry->d_un.d_val, library))
            return true;
    return false;
}

static bool contains_address(const struct dl_phdr_info *object, const ElfW(Phdr) *part, uintptr_t address)
{
    uintptr_t start = object->dlpi_addr + part->p_vaddr;
    return part->p_type == PT_LOAD && address >= start && address < start + part->p_memsz;
}

static int exclude_from_forks(struct dl_phdr_info *object, size_t size, void *first)
{
    (void)size;
    struct dl_phdr_info *program = first;
    if (!program->dlpi_phdr) { /* it comes before its libraries */
        *program = *object;
        return 0;
    }
    const char *library = strrchr(object->dlpi_name, '/'); /* without one it is the kernel's */
    if (!library || object->dlpi_addr == getauxval(AT_BASE) || links_directly(program, library + 1))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (contains_address(object, object->dlpi_phdr + i, (uintptr_t)&exclude_from_forks))
            return 0;
    uintptr_t page = (uintptr_t)getpagesize();
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = object->dlpi_phdr + i;
        uintptr_t start = (object->dlpi_addr + part->p_vaddr) & ~(page - 1);
        uintptr_t end = (object->dlpi_addr + part->p_vaddr + part->p_memsz + page - 1) & ~(page - 1);
        if (part->p_type == PT_LOAD)
            madvise((void *)start, end - start, MADV_DONTFORK);
    }
    return 0;
}

void trim_forks(void)
{
    struct dl_phdr_info program = {0};
    time_t now = time(NULL);
    dl_iterate_phdr(exclude_from_forks, &program);
    getpwuid(geteuid()); /* of whom crun notes the name, and the hour */
    localtime(&now);
}

static void end(int status, void *nothing)
{
    (void)nothing;
    fflush(NULL);
    _exit(status);
}

void exit_without_destructors(void)
{
    on_exit(end, NULL);
}
