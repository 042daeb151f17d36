"""How the settings of experiments/demo.toml were chosen: validation accuracy on seeds that the demo does not use.

python tools/tune_demo.py > benchmarks/results/demo_tuning.csv
"""

from __future__ import annotations

import fedaccord as fa

GRID: list[tuple[fa.Algorithm, float]] = [
    (fa.FedAvg(), 0.1),
    (fa.FedAvg(), 0.2),
    (fa.FedSMOO(rho=0.05), 0.1),
    (fa.FedSMOO(rho=0.1), 0.1),
    (fa.FedSMOO(rho=0.05), 0.2),
    (fa.DynamicSAM(), 0.1),
    (fa.DynamicSAM(rho_max=0.2), 0.1),
]
SEEDS = (10, 11)


def main() -> None:
    task = fa.fashion_mnist_mini(model="lenet", width=8, hidden=(64,))
    partition = fa.DirichletPerClass(alpha=0.1, clients=20)
    print("method,rho,lr,seed,validation_last,validation_mean_of_last_8")
    for algorithm, lr in GRID:
        for seed in SEEDS:
            plan = fa.LocalPlan(lr=lr, epochs=3, batch_size=20)
            run = fa.run(task, algorithm, partition=partition, cohort=5, rounds=50, seed=seed, local=plan, client_validation=0.1)
            found = run.rounds.validation_accuracy
            rho = getattr(algorithm, "rho", getattr(algorithm, "rho_max", ""))
            print(f"{type(algorithm).__name__},{rho},{lr},{seed},{found.iloc[-1]:.4f},{found.iloc[-8:].mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
