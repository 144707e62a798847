"""FedAvg by Apple's pfl, with its simulated backend and PyTorch model."""

import work as common
from pfl.data.sampling import get_user_sampler
from pfl_federation import Plan, Rounds, train


def main() -> None:
    """Runs and prints the result."""
    options = common.arguments(__doc__).parse_args()
    work, network = common.prepare(options)
    users = [str(t) for t in range(len(work.clients))]
    samples = dict(zip(users, work.clients, strict=True))
    plan = Plan(options.rounds, len(users), options.batch_size, options.lr, options.local_epochs)
    clock = common.Clock()
    next_user = get_user_sampler("minimize_reuse", users)
    train(network, samples.__getitem__, next_user, plan, Rounds(clock.start, clock.stop))
    common.report("pfl", clock, network, work.test)


if __name__ == "__main__":
    main()
