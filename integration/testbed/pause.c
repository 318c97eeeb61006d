/* Keeps a pod's namespaces: sleeps until it is terminated, and reaps orphans. */
#include <signal.h>
#include <sys/wait.h>

int main(void) {
    sigset_t wanted;
    int got;

    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGCHLD);
    sigprocmask(SIG_BLOCK, &wanted, 0);
    while (sigwait(&wanted, &got) == 0) {
        if (got != SIGCHLD)
            return 0;
        while (waitpid(-1, 0, WNOHANG) > 0) {
        }
    }
    return 1;
}
