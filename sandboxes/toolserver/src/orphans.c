#include "orphans.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "call.h"
#include "job.h"
#include "process.h"
#include "session.h"

struct orphan {
    pid_t pid;
    uint32_t job; /* 0: none */
};

static struct orphan *orphans;
static size_t count, cap;
static bool watching;

static struct orphan *find(pid_t pid)
{
    for (size_t i = 0; i < count; i++)
        if (orphans[i].pid == pid)
            return &orphans[i];
    return NULL;
}

static void add(pid_t pid, uint32_t job)
{
    if (count == cap) {
        size_t larger = cap ? cap * 2 : 32;
        struct orphan *rows = realloc(orphans, larger * sizeof *rows);
        if (!rows)
            return;
        orphans = rows;
        cap = larger;
    }
    orphans[count++] = (struct orphan){pid, job};
}

/* Add children that the server has not started. Without /proc/thread-self/children none are found. */
static void add_new_orphans(uint32_t job)
{
    FILE *children = fopen("/proc/thread-self/children", "re");
    for (int pid; children && fscanf(children, "%d", &pid) == 1;)
        if (!find(pid) && !call_of_process(pid) && !session_is(pid) && !job_of(pid))
            add(pid, job);
    if (children)
        fclose(children);
}

void orphans_watch(void)
{
    if (!watching)
        add_new_orphans(0);
    watching = true;
}

void orphans_of(pid_t pid, uint32_t job)
{
    if (!watching)
        return;
    struct orphan *known = find(pid);
    if (known) {
        job = known->job;
        *known = orphans[--count];
    }
    add_new_orphans(job);
}

void orphans_kill(uint32_t job)
{
    for (size_t i = 0; i < count; i++)
        if (orphans[i].job == job)
            process_kill_tree(orphans[i].pid);
}
