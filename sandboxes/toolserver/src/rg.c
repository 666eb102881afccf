/* Start the toolbox's ripgrep with its own loader and libraries, so that it runs in images without any. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char **command = calloc((size_t)argc + 6, sizeof *command);
    if (!command)
        return 2;
    size_t count = 0;
    command[count++] = "/.farm/lib/ld.so";
    command[count++] = "--library-path";
    command[count++] = "/.farm/lib";
    command[count++] = "/.farm/lib/rg";
    for (int i = 1; i < argc; i++)
        command[count++] = argv[i];
    execv(command[0], (char *const *)command);
    perror(command[0]);
    return 2;
}
